"""`python -m kvtrace_cli.emulator serve MODEL`: the emulated engine as a program."""

import argparse
import logging
import math
import signal
import socketserver
import sys
import threading
from pathlib import Path

from kvtrace_cli.emulator.assembly import assemble
from kvtrace_cli.emulator.children import ChildLostError
from kvtrace_cli.emulator.completions import ServedModel
from kvtrace_cli.emulator.faults import Fault
from kvtrace_cli.emulator.model_shape import read_shape
from kvtrace_cli.emulator.server import EmulatorServer, Service
from kvtrace_cli.emulator.worker import WorkerFront
from kvtrace_cli.errors import ConfigError

_LOG = logging.getLogger("kvtrace_cli.emulator")
_ENDINGS = (signal.SIGINT, signal.SIGTERM)
_POLL_S = 0.05


def main() -> int:
    """Serve until SIGINT or SIGTERM."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
    # Waited for in one place, instead of an exception anywhere: that could get lost in a callback.
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
    arguments = _parser().parse_args()
    try:
        if arguments.fault is Fault.WORKER_PROCESS:
            _serve_by_worker(arguments)
        else:
            _serve(arguments)
    except ConfigError as error:
        _LOG.error("%s", error)
        return 2
    except ChildLostError as error:
        _LOG.error("Engine core initialization failed: %s", error)
        return 1
    _LOG.info("stopped")
    return 0


def _serve_until_ended(server: socketserver.BaseServer) -> None:
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True)
    thread.start()
    signal.sigwait(_ENDINGS)
    server.shutdown()
    thread.join()


def _serve(arguments: argparse.Namespace) -> None:
    shape = read_shape(arguments.model)
    _LOG.info("EMULATED engine: no GPU, %d layers", shape.layers)
    _LOG.info("Starting to load model %s", arguments.model)
    engine = assemble(arguments, shape)
    model = ServedModel(arguments.served_model_name, arguments.max_model_len, shape.vocabulary)
    service = Service(engine, model, arguments.fault)
    engine.start()
    try:
        with EmulatorServer((arguments.host, arguments.port), service) as server:
            _LOG.info("Application startup complete.")
            _serve_until_ended(server)
    finally:
        engine.stop()


def _serve_by_worker(arguments: argparse.Namespace) -> None:
    passed = [str(arguments.model), "--served-model-name", arguments.served_model_name]
    passed += ["--max-model-len", str(arguments.max_model_len)]
    passed += ["--max-num-seqs", str(arguments.max_num_seqs)]
    passed += ["--max-num-batched-tokens", str(arguments.max_num_batched_tokens)]
    passed += ["--capture-sizes", ",".join(map(str, arguments.capture_sizes))]
    passed += ["--block-size", str(arguments.block_size), "--pass-ms", str(arguments.pass_ms)]
    passed += ["--enable-prefix-caching"] if arguments.enable_prefix_caching else []
    if arguments.flash_attention is not None:
        passed += [f"--attention-config.flash_attn_version={arguments.flash_attention}"]
    if arguments.num_gpu_blocks is not None:
        passed += ["--num-gpu-blocks", str(arguments.num_gpu_blocks)]
    if arguments.library is not None:
        passed += ["--library", str(arguments.library)]
    with WorkerFront((arguments.host, arguments.port), passed) as front:
        try:
            _serve_until_ended(front)
        finally:
            front.stop_child()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kvtrace_cli.emulator", description=__doc__)
    serve = parser.add_subparsers(required=True).add_parser("serve", help="serve a model's shape")
    serve.add_argument("model", type=Path, help="directory with the model's config.json")
    serve.add_argument("--served-model-name", default="model")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, required=True)
    serve.add_argument("--max-model-len", type=_count, default=1024)
    serve.add_argument("--max-num-seqs", type=_count, default=8)
    serve.add_argument("--max-num-batched-tokens", type=_count, default=512)
    serve.add_argument("--capture-sizes", type=_sizes, default=(1, 2, 4, 8))
    serve.add_argument("--block-size", type=_count, default=16, help="tokens of a KV block")
    serve.add_argument("--num-gpu-blocks", type=_count, help="default: they never run out")
    serve.add_argument(
        "--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=False
    )
    serve.add_argument(
        "--attention-config.flash_attn_version",
        dest="flash_attention",
        type=_count,
        help="what the log says of it; there is no attention",
    )
    serve.add_argument(
        "--pass-ms",
        type=_milliseconds,
        default=0,
        help="least time of a pass: requests that come meanwhile are batched, as on a GPU",
    )
    serve.add_argument("--tensor-parallel-size", "-tp", type=_count, default=1)
    serve.add_argument("--pipeline-parallel-size", "-pp", type=_count, default=1)
    serve.add_argument("--data-parallel-size", "-dp", type=_count, default=1)
    serve.add_argument(
        "--distributed-executor-backend",
        choices=("uni", "mp", "ray"),
        help="default: mp if a replica has several ranks, else uni",
    )
    serve.add_argument("--library", type=Path, help="libkvtrace_emulator.so; default: ours")
    serve.add_argument("--fault", type=Fault, default=Fault.NONE, choices=list(Fault))
    serve.add_argument(
        "--fault-rank",
        type=_number,
        help="which rank alone has a fault of its own, from 0 over all replicas; default: all",
    )
    return parser


def _number(text: str) -> int:
    """Return a number of 0 or more; argparse reports anything else."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number, 0 or more")
    return int(text)


def _count(text: str) -> int:
    """Return a number of 1 or more; argparse reports anything else."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number, 1 or more")
    return int(text)


def _milliseconds(text: str) -> float:
    """Return a time of 0 or more; argparse reports anything else."""
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = math.nan
    if not 0 <= milliseconds < math.inf:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected milliseconds, 0 or more")
    return milliseconds


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())

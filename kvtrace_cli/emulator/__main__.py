"""`python -m kvtrace_cli.emulator serve MODEL`: the emulated engine as a program."""

import argparse
import logging
import signal
import socketserver
import sys
import threading
from pathlib import Path

from kvtrace_cli.capture.libraries import find_emulator_library
from kvtrace_cli.emulator.completions import ServedModel
from kvtrace_cli.emulator.driver import Driver
from kvtrace_cli.emulator.engine_core import EngineCore
from kvtrace_cli.emulator.faults import Fault
from kvtrace_cli.emulator.model_runner import ModelRunner, read_shape
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
    library = find_emulator_library(arguments.library)
    _LOG.info("EMULATED engine: no GPU, %d layers", shape.layers)
    _LOG.info("Starting to load model %s", arguments.model)
    runner = ModelRunner(Driver(library), shape, arguments.capture_sizes)
    _LOG.info("Capturing CUDA graphs of sizes %s", arguments.capture_sizes)
    runner.warm_up()
    core = EngineCore(
        runner,
        max_num_seqs=arguments.max_num_seqs,
        max_batched_tokens=arguments.max_num_batched_tokens,
    )
    model = ServedModel(arguments.served_model_name, arguments.max_model_len, shape.vocabulary)
    service = Service(core, model, arguments.fault)
    core.start()
    try:
        with EmulatorServer((arguments.host, arguments.port), service) as server:
            _LOG.info("Application startup complete.")
            _serve_until_ended(server)
    finally:
        core.stop()
        _LOG.info("target blocks that really ran: %d", runner.target_blocks_run)


def _serve_by_worker(arguments: argparse.Namespace) -> None:
    passed = [str(arguments.model), "--served-model-name", arguments.served_model_name]
    passed += ["--max-model-len", str(arguments.max_model_len)]
    passed += ["--max-num-seqs", str(arguments.max_num_seqs)]
    passed += ["--max-num-batched-tokens", str(arguments.max_num_batched_tokens)]
    passed += ["--capture-sizes", ",".join(map(str, arguments.capture_sizes))]
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
    serve.add_argument("--max-model-len", type=int, default=1024)
    serve.add_argument("--max-num-seqs", type=int, default=8)
    serve.add_argument("--max-num-batched-tokens", type=int, default=512)
    serve.add_argument("--capture-sizes", type=_sizes, default=(1, 2, 4, 8))
    serve.add_argument("--library", type=Path, help="libkvtrace_emulator.so; default: ours")
    serve.add_argument("--fault", type=Fault, default=Fault.NONE, choices=list(Fault))
    return parser


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())

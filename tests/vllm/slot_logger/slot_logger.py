"""A vLLM plug-in that logs the engine's own slots: what kvtrace's plug-in is compared with.

On the CPU they are host memory; on a GPU, reading them would wait for it. Logs a line a step that
runs requests, and one with the layers' KV tensors.
"""

import functools
import json
import os


def register():
    from vllm.v1.worker import gpu_model_runner  # noqa: PLC0415  after vLLM's own set-up

    runner_class = gpu_model_runner.GPUModelRunner
    if not hasattr(runner_class, "_slot_logger"):
        runner_class._slot_logger = True
        prepare = runner_class._prepare_inputs
        get_slots = runner_class._get_slot_mappings
        runner_class._prepare_inputs = _noting_requests(prepare)
        runner_class._get_slot_mappings = _logging_slots(get_slots)


def _noting_requests(prepare):
    @functools.wraps(prepare)
    def wrapper(runner, *args, **kwargs):
        result = prepare(runner, *args, **kwargs)
        runner.slot_logger_requests = list(runner.input_batch.req_ids)
        return result

    return wrapper


def _logging_slots(get_slots):
    @functools.wraps(get_slots)
    def wrapper(runner, *args, **kwargs):
        result = get_slots(runner, *args, **kwargs)
        requests = runner.__dict__.pop("slot_logger_requests", None)
        if requests is not None:  # else a dummy run
            slots = result[0][0].tolist()
            _log({"process_id": os.getpid(), "requests": requests, "slots": slots})
            _log_tensors_once(runner)
        return result

    return wrapper


def _log_tensors_once(runner):
    if not hasattr(runner, "slot_logger_tensors"):
        layers = runner.compilation_config.static_forward_context
        runner.slot_logger_tensors = True
        _log(
            {
                "tensors": {
                    name: [layer.kv_cache.data_ptr(), list(layer.kv_cache.shape)]
                    for name, layer in layers.items()
                }
            }
        )


def _log(line):
    with open(os.environ["SLOT_LOGGER_FILE"], "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(json.dumps(line) + "\n")

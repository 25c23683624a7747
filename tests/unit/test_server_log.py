import pytest

from kvtrace_cli.capture.server_log import TAIL_LINES, EngineAttention, ServerLog


@pytest.fixture
def log(tmp_path):
    (tmp_path / "server.log").touch()
    return ServerLog(tmp_path / "server.log")


def add(log, text):
    with log.path.open("a") as file:
        file.write(text)
    log.follow()


def test_phases_follow_the_log(log):
    phases = []
    for line in (
        "WARNING [vllm.py] Enforce eager set, disabling torch.compile, CUDAGraphs\n",
        "INFO [gpu_worker.py] Starting to load model Qwen3-14B...\n",
        "INFO Dynamo bytecode transform time: 5.1 s\n",
        "INFO Capturing CUDA graphs (decode, FULL): 0%\n",
        "INFO Starting vLLM API server on http://127.0.0.1:4000\n",
    ):
        add(log, line)
        phases.append(log.phase)
    assert phases == [None, "loading weights", "compiling", "capturing graphs", "opening the port"]


def test_a_line_is_judged_when_it_is_whole(log):
    add(log, "RuntimeError: CUDA ")
    assert log.fatal_line is None
    add(log, "error: misaligned address\nmore\n")
    assert log.fatal_line == "RuntimeError: CUDA error: misaligned address"


def test_the_first_fatal_line_is_kept(log):
    add(log, "EngineCore encountered a fatal error.\nEngineDeadError\n")
    assert log.fatal_line == "EngineCore encountered a fatal error."


def test_ordinary_lines_are_not_fatal(log):
    add(log, "INFO CUDA graphs captured\nWARNING no error here\n\xff\xfe\n")
    assert log.fatal_line is None


def engine_says(pid, *lines):
    return "".join(f"(EngineCore pid={pid}) INFO 11-30 03:10:49 [file.py:1] {it}\n" for it in lines)


@pytest.mark.parametrize(
    ("line", "backend"),
    [
        ("Using AttentionBackendEnum.FLASH_ATTN backend.", "FLASH_ATTN"),
        ("Using FLASHINFER attention backend out of potential backends: ['X', 'Y'].", "FLASHINFER"),
    ],
)
def test_the_attention_is_what_the_log_says(log, line, backend):
    assert log.attention is None
    add(log, engine_says(7, line))
    assert log.attention == EngineAttention((backend,), ())
    add(log, engine_says(7, "Using FlashAttention version 3"))
    assert log.attention == EngineAttention((backend,), (3,))


def test_processes_that_say_the_same_are_one_and_others_are_all_named(log):
    same = ("Using AttentionBackendEnum.FLASH_ATTN backend.", "Using FlashAttention version 3")
    add(log, engine_says(7, *same) + engine_says(8, *same))
    assert log.attention == EngineAttention(("FLASH_ATTN",), (3,))
    add(log, engine_says(9, "Using AttentionBackendEnum.FLEX_ATTENTION backend."))
    add(log, engine_says(9, "Using FlashAttention version 2"))
    assert log.attention == EngineAttention(("FLASH_ATTN", "FLEX_ATTENTION"), (2, 3))


def test_what_is_not_the_attention_of_the_model_is_not_taken_for_it(log):
    add(
        log,
        engine_says(
            7,
            "Using backend AttentionBackendEnum.FLASH_ATTN for vit attention",
            "Using AttentionBackendEnum.FLASH_ATTN for MMEncoderAttention.",
            "Using FLASH_ATTN MLA prefill backend.",
            "Using 'MARLIN' WNA16 MoE backend.",
            "SAGE attention using FlashAttention version 3",
        ),
    )
    assert log.attention is None


def test_the_tail_leads_with_the_cause_which_its_parents_traceback_hides(log):
    """As vLLM 0.32 logs a start that fails in the engine's process."""
    where = "(EngineCore pid=7) ERROR 11-30 03:10:49 [core.py:1510]"
    add(
        log,
        f"{where} EngineCore failed to start.\n"
        f"{where}     raise ValueError(\n"
        f"{where} ValueError: No available memory for the cache blocks.\n"
        f"{where} RuntimeError: a later one\n"
        + "  frame of the API server\n" * 50
        + "RuntimeError: Engine core initialization failed. See root cause above.\n",
    )
    said = "its log says: ValueError: No available memory for the cache blocks.; the end of"
    assert log.tail().startswith(said)


def test_without_an_exception_the_fatal_line_is_the_cause(log):
    add(log, "RuntimeError: CUDA error: misaligned address\n" + "frame\n" * 50)
    said = "its log says: RuntimeError: CUDA error: misaligned address; the end of"
    assert log.tail().startswith(said)


def test_the_tail_is_short_and_says_where_the_rest_is(log):
    add(log, "".join(f"line {number}\n" for number in range(1000)))
    tail = log.tail()
    assert str(log.path) in tail
    assert len(tail.splitlines()) == TAIL_LINES + 1
    assert tail.endswith("line 999")

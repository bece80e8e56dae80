"""Names of flags that are retired, or that the release of an image lacks."""

from pathlib import Path

from judged import check, found

OLD, NEW = "--mamba-scheduler-strategy", "--mamba-radix-cache-strategy"
LAUNCH = "python -m sglang.launch_server --model-path Qwen/Qwen3.6-27B-FP8"


def test_a_retired_name_is_noted_where_the_release_has_the_new_one(tmp_path: Path) -> None:
    """Nothing is said of 0.5.12, HC072 of 0.5.16, and 0.5.20 does not take it."""
    for version, rule in (("0.5.12", None), ("0.5.16", "HC072"), ("0.5.20", "HC071")):
        text = f"docker run --gpus all lmsysorg/sglang:v{version} {LAUNCH} {OLD} extra_buffer\n"
        said = found(check(tmp_path, text))
        assert {"HC071", "HC072"} & said.keys() == ({rule} if rule else set()), version
        assert rule is None or said[rule][3] == f"write {NEW}"

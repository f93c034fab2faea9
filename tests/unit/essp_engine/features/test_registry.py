"""The registry: what is installed, whoever installed it, with parameters checked before anything runs."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from essp_common.errors import ConfigError
from essp_engine.features import registry
from essp_engine.features.port import ArraySpec
from tests.harness.extractor_bench import ExtractorBench, frames_at, stream
from tests.harness.refused import refused

CLIP = ArraySpec((11, 64, 80, 3), "uint8")


class Package:
    """Another distribution on the import path."""

    def __init__(self, root: Path, name: str, entries: dict[str, str], source: str = "") -> None:
        information = root / f"{name}-1.0.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = "".join(f"{key} = {value}\n" for key, value in entries.items())
        (information / "entry_points.txt").write_text(f"[essp.extractors]\n{lines}")
        if source:
            (root / f"{name}.py").write_text(textwrap.dedent(source))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path, of which nothing stays imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for module in tmp_path.glob("*.py"):
        sys.modules.pop(module.stem, None)


BRIGHTNESS = '''
    import numpy as np

    from essp_engine.features.port import ArraySpec, FeatureParams


    class BrightnessParams(FeatureParams):
        gain: float = 1.0


    class Brightness:
        """Mean brightness of each frame, times a gain."""

        name = "brightness"
        summary = "Mean brightness."

        Params = BrightnessParams

        def __init__(self, params) -> None:
            self.gain = params.gain

        def frames_needed(self):
            return 1

        def output(self, clip):
            return ArraySpec((clip.shape[0], 1), "float32")

        def setup(self):
            self.dtype = np.float32

        def extract(self, clip):
            return (clip.mean(axis=(1, 2, 3)) * self.gain).astype(self.dtype)[:, None]
'''


def test_extractor_of_another_package_works_end_to_end(site: Path) -> None:
    Package(site, "acme_features", {"brightness": "acme_features:Brightness"}, BRIGHTNESS)
    assert "brightness" in registry.names()
    assert registry.output_of("brightness", {"gain": 2.0}, CLIP) == ArraySpec((11, 1), "float32")

    bench = ExtractorBench(stream("light", "brightness", "zstd", gain=2.0))
    with bench.extractor("brightness"):
        for index in range(3):
            bench.decoded(index)
        ready = bench.ready(3)
    for index in range(3):
        mean = 2 * frames_at(index).mean(axis=(1, 2, 3))
        assert bench.take(ready[index, "light"])[:, 0] == pytest.approx(mean, rel=1e-6)
    assert bench.cache.usage().keys == 0


def test_package_that_does_not_load_hides_no_other(site: Path) -> None:
    Package(site, "broken_features", {"broken": "broken_features:Broken"}, "raise RuntimeError('needs a GPU')")
    Package(site, "absent_features", {"absent": "absent_features:Absent"})
    Package(site, "acme_features", {"brightness": "acme_features:Brightness"}, BRIGHTNESS)
    assert {"broken", "absent", "brightness", "flow"} <= set(registry.names())
    assert registry.create("brightness", {}).frames_needed() == 1
    with pytest.raises(ConfigError, match=r"'broken' of package 'broken_features' cannot be loaded.*needs a GPU"):
        registry.create("broken", {})
    with pytest.raises(ConfigError, match="'absent' of package 'absent_features' cannot be loaded"):
        registry.create("absent", {})


def test_an_extractor_of_all_features_leaves_out_what_does_not_load(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Package(site, "broken_features", {"broken": "broken_features:Broken"}, "raise RuntimeError('needs a GPU')")
    Package(site, "acme_features", {"brightness": "acme_features:Brightness"}, BRIGHTNESS)
    bench = ExtractorBench(stream("light", "brightness"))
    with bench.extractor():
        bench.decoded(1)
        assert set(bench.ready(1)) == {(1, "light")}
    (told,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert "'broken' of package 'broken_features' cannot be loaded" in told
    with pytest.raises(ConfigError, match="'broken' of package 'broken_features'"), bench.extractor("broken"):
        pass


@pytest.mark.parametrize("target", ["odd_features:NUMBER", "odd_features:Hollow"])
def test_what_is_no_extractor_is_refused(site: Path, target: str) -> None:
    Package(site, "odd_features", {"odd": target}, "NUMBER = 3\nclass Hollow: summary = 'nothing'")
    with pytest.raises(ConfigError, match=r"'odd' of package 'odd_features'.*see essp_engine.features.port"):
        registry.create("odd", {})


def test_name_claimed_by_two_packages_is_refused(site: Path) -> None:
    Package(site, "acme_features", {"flow": "acme_features:Brightness"}, BRIGHTNESS)
    with pytest.raises(ConfigError, match=r"several packages.*acme_features"):
        registry.create("flow", {})


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("optical", {}, "no extractor 'optical' is installed; there are: .*flow.*frame_diff.*frame_stack.*rgb"),
        ("flow", {"lenght": 5}, "no parameter 'lenght'; its parameters are: method, preset, length, bound"),
        ("flow", {"length": "5"}, "^length: "),
        ("flow", {"length": 0}, "^length: "),
        ("flow", {"bound": -1.0}, "^bound: "),
        ("flow", {"bound": 20}, "^bound: "),
        ("flow", {"method": "raft"}, "^method: "),
        ("flow", {"method": "dis", "winsize": 21}, "need method farneback"),
        ("flow", {"method": "farneback", "preset": "medium"}, "preset needs method dis"),
        ("rgb", {"frames": True}, "^frames: "),
        ("frame_stack", {"length": 65}, "^length: "),
    ],
)
def test_wrong_request_says_what_is_right(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.create(name, params)


def test_missing_parameter_is_named(site: Path) -> None:
    Package(
        site, "acme_features", {"brightness": "acme_features:Brightness"}, BRIGHTNESS.replace("float = 1.0", "float")
    )
    with refused("gain", "missing"):
        registry.create("brightness", {})


def test_clip_shorter_than_needed_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"flow needs clips of 12 frames, clip\.frames is 11; set it to 12 or more"):
        registry.output_of("flow", {"length": 11}, CLIP)


def test_whole_numbers_pass_where_a_fraction_is_meant() -> None:
    assert registry.create("flow", {"bound": 1}).frames_needed() == 11


def test_declaration_says_what_a_user_can_set() -> None:
    declared = registry.describe("frame_diff")
    assert declared["params"] == {"length": 5, "every": 1, "short_side": None}
    assert registry.describe("rgb")["params"] == {"frames": 1}
    assert declared["frames_needed"] == 6


@pytest.mark.parametrize("name", sorted(registry.names()))
def test_every_parameter_says_what_it_is(name: str) -> None:
    fields = registry.fields_of(name)
    assert fields
    assert [parameter for parameter, field in fields.items() if not field.description] == []


def test_values_that_exclude_each_other_are_refused_in_the_words_of_the_feature(site: Path) -> None:
    source = BRIGHTNESS.replace(
        "gain: float = 1.0",
        """gain: float = 1.0

        @model_validator(mode="after")
        def check(self):
            if self.gain == 0:
                raise ValueError("a gain of 0 leaves nothing")
            return self""",
    ).replace("import numpy as np", "import numpy as np\n    from pydantic import model_validator")
    Package(site, "acme_features", {"brightness": "acme_features:Brightness"}, source)
    with pytest.raises(ConfigError, match="brightness: a gain of 0 leaves nothing"):
        registry.create("brightness", {"gain": 0})


@pytest.mark.processes
def test_declaring_loads_no_image_library() -> None:
    code = (
        "import sys\n"
        "from essp_engine.features import registry\n"
        "from essp_engine.features.port import ArraySpec\n"
        "for name in ('rgb', 'frame_stack', 'frame_diff', 'flow'):\n"
        "    registry.output_of(name, {}, ArraySpec((11, 64, 64, 3), 'uint8'))\n"
        "print(sorted({'cv2', 'av', 'torch'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_extracted_arrays_are_numpy(site: Path) -> None:
    Package(site, "acme_features", {"brightness": "acme_features:Brightness"}, BRIGHTNESS)
    extractor = registry.create("brightness", {})
    extractor.setup()
    assert extractor.extract(np.full((2, 4, 4, 3), 7, np.uint8)).tolist() == [[7.0], [7.0]]

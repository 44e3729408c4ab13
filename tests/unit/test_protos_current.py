"""The committed stubs are what the .proto files give."""

from __future__ import annotations

from pathlib import Path

from grpc_tools import _proto, protoc

ROOT = Path(__file__).parents[2]
PROTOS = sorted((ROOT / "protos").glob("*.proto"))
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def test_the_committed_stubs_are_current(tmp_path: Path) -> None:
    assert len(PROTOS) == 4
    well_known = Path(_proto.__file__).parent if _proto.__file__ else Path(*_proto.__path__)
    arguments = [
        f"--proto_path={ROOT}",
        f"--proto_path={well_known}",
        f"--python_out={tmp_path}",
        f"--pyi_out={tmp_path}",
        f"--grpc_python_out={tmp_path}",
        *(f"protos/{path.name}" for path in PROTOS),
    ]
    assert protoc.main(["protoc", *arguments]) == 0
    names = {f"{path.stem}{suffix}" for path in PROTOS for suffix in SUFFIXES}
    assert {path.name for path in (tmp_path / "protos").iterdir()} == names
    committed = {path.name for path in (ROOT / "protos").glob("*_pb2*")}
    assert committed == names
    for name in names:
        fresh = (tmp_path / "protos" / name).read_text(encoding="utf-8")
        assert (ROOT / "protos" / name).read_text(encoding="utf-8") == fresh, (
            f"protos/{name} is not current: run `make protos`"
        )

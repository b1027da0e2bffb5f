"""Whose a file is: by its path, and by what an installer put into its folder."""

from __future__ import annotations

import pytest

from memprof.source_code.frame_kind import FrameKind, frame_kind


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/train.py", FrameKind.USER),
        ("train.py", FrameKind.USER),
        ("/x/site-packages/timm/models/vit.py", FrameKind.LIBRARY),
        ("C:\\x\\Lib\\site-packages\\torch\\nn\\modules\\module.py", FrameKind.TORCH),
        ("/usr/lib/python3.11/threading.py", FrameKind.STDLIB),
        ("/tmp/torch_geometric.nn.conv.gcn_conv_GCNConv_propagate_ab.py", FrameKind.LIBRARY),
        ("/tmp/__main___GatedConv_propagate_4_f0ljj7.py", FrameKind.LIBRARY),
        (
            "C:/Users/me/AppData/Local/Temp/nets.gnn_Conv_edge_updater_ab12cd_4.py",
            FrameKind.LIBRARY,
        ),
        ("/home/me/gnn_Conv_propagate_messages.py", FrameKind.USER),
        ("/home/me/templates/gnn_propagate_features.py", FrameKind.USER),
        ("/home/me/attempts/conv_edge_updater_weighted.py", FrameKind.USER),
        ("/tmp/gnn_propagate.py", FrameKind.USER),
        ("/home/me/train.v2_final.py", FrameKind.USER),
        ("", FrameKind.NATIVE),
    ],
)
def test_a_path_tells_whose_a_file_is(path, kind):
    assert frame_kind(path) is kind


def test_a_package_that_was_installed_into_a_folder_of_any_name_is_a_library(tmp_path):
    target = tmp_path / "layers"
    for name in ("trainer/loop.py", "one_file.py", "mine.py", "own/model.py"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("")
    for name, listed in (("trainer-1.0", "trainer/loop.py"), ("other_name-2", "one_file.py")):
        (target / f"{name}.dist-info").mkdir()
        (target / f"{name}.dist-info" / "RECORD").write_text(f"{listed},sha256=x,0\n")
    assert frame_kind(str(target / "trainer/loop.py")) is FrameKind.LIBRARY
    assert frame_kind(str(target / "one_file.py")) is FrameKind.LIBRARY
    # What the user keeps in the same folder is the user's all the same.
    assert frame_kind(str(target / "mine.py")) is FrameKind.USER
    assert frame_kind(str(target / "own/model.py")) is FrameKind.USER

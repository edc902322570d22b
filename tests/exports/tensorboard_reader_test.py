"""TensorBoard's own reader gets the tags, steps and values of `xffl export tensorboard`.

XFFL_EXPORTS_TEST writes the files: two rounds of two facilities with ten steps each.
"""
import os
import pathlib
import subprocess
import tempfile
import unittest

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def read(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


class Reader(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = pathlib.Path(cls.temporary.name) / "tb"
        subprocess.run([os.environ["XFFL_EXPORTS_TEST"], "--gtest_filter=Tensorboard.WritesOneFile*"], check=True, timeout=60,
                       capture_output=True, env={**os.environ, "XFFL_KEEP": str(cls.folder)})

    def test_steps_of_a_facility(self):
        events = read(self.folder / "site1")
        self.assertEqual(set(events.Tags()["scalars"]),
                         {"loss/train", "lr", "grad_norm", "tokens_per_second", "loss/validation/it"})
        losses = events.Scalars("loss/train")
        self.assertEqual([one.step for one in losses], list(range(1, 21)))
        self.assertEqual([one.value for one in losses], [4 - 0.125 * step for step in range(1, 21)])
        self.assertEqual([one.step for one in events.Scalars("loss/validation/it")], [10, 20])

    def test_rounds_of_the_run(self):
        events = read(self.folder / "global")
        self.assertEqual(set(events.Tags()["scalars"]),
                         {"round/loss/site0/it", "round/loss/site1/it", "round/change/site0", "round/change/site1",
                          "round/cosine/site0", "round/cosine/site1",
                          "round/seconds", "round/node_seconds/site0", "round/node_seconds/site1"})
        losses = events.Scalars("round/loss/site1/it")
        self.assertEqual([one.step for one in losses], [0, 1, 2])  # of the model of each round
        for one, expected in zip(losses, [4.1, 3.1, 2 + 2 / 3 + 0.1]):
            self.assertAlmostEqual(one.value, expected, places=6)
        self.assertEqual([one.step for one in events.Scalars("round/seconds")], [1, 2])
        text = events.Tensors("xffl/run")[0].tensor_proto.string_val[0]
        self.assertEqual(text, b"run **0001** of project **test**")


if __name__ == "__main__":
    unittest.main()

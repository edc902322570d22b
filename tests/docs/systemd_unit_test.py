"""The systemd unit of docs/operator/operating.md starts the coordinator again, without a limit, after errors that pass by themselves."""
import sys
import unittest

from pages import ROOT, blocks, table_rows

PASSING = {"6", "7"}  # a full disk, an unreachable facility


class Unit(unittest.TestCase):
    def test_starts_again_after_passing_errors_alone(self):
        [unit] = [block.text for block in blocks(ROOT / "docs/operator/operating.md") if block.language == "ini"]
        settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
        codes = {cells[0] for _, cells in table_rows(ROOT / "docs/reference/exit_codes.md", "code")}
        final = {"0", settings["SuccessExitStatus"], *settings["RestartPreventExitStatus"].split()}
        self.assertEqual(settings["Restart"], "on-failure")
        self.assertEqual(codes - final, PASSING)
        self.assertEqual(final - codes, set(), "exit codes that xffl does not have")
        # With a limit, a disk that stays full for a while would leave the unit failed for ever.
        self.assertEqual(settings["StartLimitIntervalSec"], "0")


if __name__ == "__main__":
    sys.exit(unittest.main())

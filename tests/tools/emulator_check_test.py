"""tools/emulator_check.py reads ncu's table, and 5 % is 5 % of what the GPU counted."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import emulator_check

NCU = """==PROF== Connected to process 1
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","1","norm_block","l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum","sector","1,000"
"0","1","norm_block","l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum","","250"
"1","1","norm_block","l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum","sector","24"
"""


class EmulatorCheckTest(unittest.TestCase):
    def test_counters_are_summed_over_kernels(self):
        counted = emulator_check.counters(NCU)
        self.assertEqual(counted["load_sectors"], 1024)
        self.assertEqual(counted["load_requests"], 250)
        self.assertEqual(counted["store_sectors"], 0)

    def test_five_percent_of_what_the_gpu_counted(self):
        self.assertTrue(emulator_check.agrees(105, 100))
        self.assertFalse(emulator_check.agrees(106, 100))
        self.assertFalse(emulator_check.agrees(94, 100))
        self.assertTrue(emulator_check.agrees(0, 0))
        self.assertFalse(emulator_check.agrees(1, 0))


if __name__ == "__main__":
    unittest.main()

"""The flags of the systems that prefixd grew out of (features.md S0, S1, S3), and what they
refuse."""

import contextlib
import io
import unittest

from prefixd.mlx import OptionError, Options, TensorFormat, server
from prefixd.mlx.options import RAW, parse


class WhatAServerIsTold(unittest.TestCase):
    def test_without_flags_nothing_is_quantized(self):
        flags = parse(["--model", "m", "--port", "8080"])
        self.assertEqual(flags.options, Options())
        self.assertEqual(flags.options.store_format(100_000), RAW)
        self.assertEqual(flags.server_arguments, ["--model", "m", "--port", "8080"])

    def test_kv_bits_go_on_to_the_engine_with_the_servers_defaults(self):
        flags = parse(["--kv-bits", "8", "--model", "m"])
        self.assertEqual(
            flags.server_arguments,
            [
                "--model",
                "m",
                "--kv-bits",
                "8",
                "--kv-group-size",
                "64",
                "--quantized-kv-start",
                "0",
            ],
        )

    def test_the_seeds_example_invocations_are_accepted(self):
        self.assertEqual(parse(["--kv-bits", "4"]).options.quantized, TensorFormat(4, 64))
        flags = parse(["--kv-bits", "8", "--kv-group-size", "128"])
        self.assertEqual(flags.options.quantized, TensorFormat(8, 128))

    def test_every_width_and_group_of_mlx_is_accepted(self):
        for bits in (2, 3, 4, 5, 6, 8):
            for group in (32, 64, 128):
                flags = parse([f"--kv-bits={bits}", f"--kv-group-size={group}"])
                self.assertEqual(flags.options.quantized, TensorFormat(bits, group))

    def test_quantization_for_saving_alone_stays_out_of_the_engine(self):
        flags = parse(["--kv-cache-quantization", "--model=m"])
        self.assertEqual(flags.server_arguments, ["--model=m"])
        self.assertEqual(flags.options.quantized, TensorFormat(8, 64))

    def test_entries_shorter_than_256_tokens_stay_raw(self):
        options = parse(["--kv-cache-quantization"]).options
        self.assertEqual(options.store_format(255), RAW)
        self.assertEqual(options.store_format(256), TensorFormat(8, 64))

    def test_a_minimum_of_0_tokens_quantizes_always(self):
        options = parse(["--kv-cache-quantization", "--kv-cache-min-quantize-tokens=0"]).options
        self.assertEqual(options.store_format(1), TensorFormat(8, 64))

    def test_max_kv_size_is_ignored_with_a_warning(self):
        flags = parse(["--kv-bits=8", "--max-kv-size=4096"])
        self.assertIn("--max-kv-size 4096 ignored", flags.warnings[0])
        self.assertNotIn("--max-kv-size", " ".join(flags.server_arguments))

    def test_deadlines_are_those_of_the_flags(self):
        arguments = ["--prefixd-deadline-ms=1", "--prefixd-load-deadline-ms=2"]
        options = parse([*arguments, "--prefixd-store-deadline-ms=3"]).options
        seen = (options.deadline_ms, options.load_deadline_ms, options.store_deadline_ms)
        self.assertEqual(seen, (1, 2, 3))

    def test_the_start_up_line_says_what_is_saved(self):
        self.assertEqual(
            Options(kv_bits=8).describe(head_dim=128),
            "KV cache quantization enabled: 8-bit, group_size=64 (~47% memory savings)",
        )


class WhatAServerRefuses(unittest.TestCase):
    def assert_refused(self, arguments: list[str], *sentence: str) -> None:
        with self.assertRaises(OptionError) as refusal:
            parse(arguments)
        for part in sentence:
            self.assertIn(part, str(refusal.exception))

    def test_bits_that_mlx_does_not_have_with_the_list_of_choices(self):
        for bits in ("0", "1", "7", "16"):
            self.assert_refused([f"--kv-bits={bits}"], bits, "one of 2, 3, 4, 5, 6, 8")

    def test_groups_that_mlx_does_not_have(self):
        self.assert_refused(["--kv-bits=8", "--kv-group-size=48"], "48", "32, 64, 128")

    def test_a_group_or_a_start_without_bits(self):
        self.assert_refused(["--kv-group-size=64"], "--kv-group-size without --kv-bits")
        self.assert_refused(["--quantized-kv-start=0"], "--quantized-kv-start without --kv-bits")
        self.assert_refused(
            ["--kv-cache-min-quantize-tokens=1"],
            "--kv-cache-min-quantize-tokens without --kv-cache-quantization",
        )

    def test_pages_to_read_that_servers_with_these_flags_do_not_share(self):
        self.assert_refused(["--prefixd-read=8,3"], "read: 3/64", "8/64, 6/64, 4/64")
        self.assert_refused(["--prefixd-read=x"], "--prefixd-read: x")
        self.assert_refused(["--kv-bits=8", "--prefixd-read=4"], "its own format and raw rows only")

    def test_negative_numbers_of_tokens(self):
        self.assert_refused(["--kv-bits=8", "--quantized-kv-start=-1"], "-1", "at least 0")
        self.assert_refused(
            ["--kv-cache-quantization", "--kv-cache-min-quantize-tokens=-1"], "-1", "at least 0"
        )

    def test_quantized_caches_that_would_be_quantized_again(self):
        self.assert_refused(["--kv-bits=8", "--kv-cache-quantization"], "one of the two")

    def test_a_group_that_does_not_divide_head_dim_naming_both(self):
        with self.assertRaisesRegex(OptionError, "group_size 128 does not divide head_dim 64"):
            Options(kv_bits=8, kv_group_size=128).check_head_dim(64)

    def test_with_a_sentence_on_the_command_line_and_exit_code_2(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(server.main(["--kv-bits=16"]), 2)
        self.assertEqual(said.getvalue().count("\n"), 1)
        self.assertIn("prefixd.mlx.server: kv_bits: 16", said.getvalue())


if __name__ == "__main__":
    unittest.main()

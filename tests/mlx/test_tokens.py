"""mlx_lm.server's cache keys as prompts: an image is a run of one negative number."""

import unittest

from prefixd.mlx.tokens import from_server

KEYS = [5, 6, -17, -17, -17, -18, -18, 7]


class Prompts(unittest.TestCase):
    def test_have_a_placeholder_for_each_token_of_an_image(self):
        prompt = from_server(KEYS)
        self.assertEqual(prompt.tokens, [5, 6, 0, 0, 0, 0, 0, 7])
        self.assertEqual([(i.start, i.length) for i in prompt.images], [(2, 3), (5, 2)])

    def test_tell_images_apart_by_their_number_and_nothing_else(self):
        one, other = from_server(KEYS).images
        self.assertNotEqual(one.digest, other.digest)
        (again,) = from_server([1, -17]).images
        self.assertEqual(again.digest, one.digest)

    def test_are_never_cut_inside_an_image(self):
        prompt = from_server(KEYS)
        cuts = [prompt.outside_images(count) for count in range(9)]
        self.assertEqual(cuts, [0, 1, 2, 2, 2, 5, 5, 7, 8])
        self.assertEqual(len(prompt.cut(5).images), 1)

    def test_begin_with_another_if_tokens_and_images_do(self):
        prompt = from_server(KEYS)
        self.assertTrue(prompt.begins_with(from_server(KEYS[:5])))
        self.assertFalse(prompt.begins_with(from_server([5, 6, -16, -16, -16])))
        self.assertFalse(from_server(KEYS[:5]).begins_with(prompt))


if __name__ == "__main__":
    unittest.main()

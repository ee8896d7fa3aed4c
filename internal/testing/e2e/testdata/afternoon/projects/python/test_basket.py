import unittest

import basket


class Basket(unittest.TestCase):
    def test_total(self):
        self.assertEqual(basket.total([250, 199, 51]), 500)

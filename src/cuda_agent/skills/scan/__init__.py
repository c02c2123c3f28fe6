"""Running sums and products along a dim, with what surrounds them."""

"""The performers of a node: each carries out one group of the commands that owners issue, and feeds the
answers back."""

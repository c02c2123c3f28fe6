"""Code generators that the skills share: expressions, operand addressing, kernel scaffolds."""

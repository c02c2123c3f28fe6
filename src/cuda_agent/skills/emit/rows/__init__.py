"""One generator for every `rowwise` region: lower to a RowProgram, emit CUDA or C++."""

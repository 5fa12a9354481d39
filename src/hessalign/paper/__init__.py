"""The paper's experiments: what to run, what was published, and a verdict. `catalogue` has them."""

"""The laboratory: data sets, models, algorithms, runs and sweeps; it stands on the library."""

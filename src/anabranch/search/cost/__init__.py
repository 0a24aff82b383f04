"""What a graph would take, predicted: `estimator` prices the tasks it would fuse into
(`task_cuts`), `incremental` goes on from the price of a prefix, `parallel_forecast` says what
streams gain."""

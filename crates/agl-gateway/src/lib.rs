//! The data plane: shape, route, forward, retry and capture model calls; pause and drain.

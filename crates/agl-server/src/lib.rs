//! The gateway process: HTTP routes, authentication, shutdown.

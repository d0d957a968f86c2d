//! Typed HTTP client of the gateway, one method a route.

//! One function an endpoint.

pub(crate) mod docs;
pub(crate) mod events;
pub(crate) mod models;
pub(crate) mod proxy;
pub(crate) mod readiness;
pub(crate) mod rollouts;

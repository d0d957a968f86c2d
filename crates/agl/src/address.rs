//! Addresses that users write: numbers, or names such as `localhost`.

use std::net::{IpAddr, ToSocketAddrs};

use anyhow::{Context, Result};

/// The address, or the first one that the name stands for; an error names the setting `key`.
pub fn resolve(key: &str, host: &str) -> Result<IpAddr> {
    let mut addresses = (host, 0)
        .to_socket_addrs()
        .with_context(|| format!("{key}={host}: not an address, nor a name that has one"))?;
    addresses.next().map(|address| address.ip()).with_context(|| format!("{key}={host}: the name has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_addresses_and_the_rest_is_named() {
        assert!(resolve("host", "localhost").unwrap().is_loopback());
        assert_eq!(resolve("host", "0.0.0.0").unwrap(), IpAddr::from([0, 0, 0, 0]));
        assert!(resolve("gateway.host", "").unwrap_err().to_string().starts_with("gateway.host="));
    }
}

//! The one configuration of a server, from flags, environment and defaults.

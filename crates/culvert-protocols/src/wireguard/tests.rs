//! Two endpoints on this host, and what may stand in their options.

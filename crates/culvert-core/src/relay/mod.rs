//! Moving payload between a client and an upstream until both are done. One task per flow polls both directions.

pub mod packet;
pub mod stream;

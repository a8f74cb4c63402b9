//! Moving payload between a client and an upstream until both are done. One task per flow polls both directions.

mod lane;
pub mod packet;
pub mod stream;

//! User entries that several protocols share.

use crate::table::options;
use crate::value::Secret;

options! {
    /// A user with a name and a password.
    pub struct LoginUser {
        /// Name to log in with; also the name in rules and logs.
        username: String [keep],
        /// Password.
        password: Secret<String> [keep],
    }

    /// A user known by the password alone.
    pub struct PasswordUser {
        /// Name in rules and logs.
        name: String [keep],
        /// Password.
        password: Secret<String> [keep],
    }
}

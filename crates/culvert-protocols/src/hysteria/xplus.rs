//! XPlus: every datagram looks like random bytes.
//!
//! ```text
//! salt[16]  packet XOR SHA-256(password, salt) over and over
//! ```

use aws_lc_rs::digest;
use culvert_quic::Disguise;

const SALT: usize = 16;

/// See the module.
pub(super) struct XPlus {
    /// Fed with the password.
    keyed: digest::Context,
}

impl XPlus {
    pub(super) fn new(password: &[u8]) -> Self {
        let mut keyed = digest::Context::new(&digest::SHA256);
        keyed.update(password);
        Self { keyed }
    }

    fn apply(&self, salt: &[u8], bytes: &mut [u8]) {
        let mut keyed = self.keyed.clone();
        keyed.update(salt);
        let key = keyed.finish();
        for block in bytes.chunks_mut(key.as_ref().len()) {
            block.iter_mut().zip(key.as_ref()).for_each(|(byte, key)| *byte ^= key);
        }
    }

    fn wrap_with(&self, salt: [u8; SALT], datagram: &[u8], to: &mut Vec<u8>) {
        to.extend(salt);
        let start = to.len();
        to.extend(datagram);
        self.apply(&salt, &mut to[start..]);
    }
}

impl Disguise for XPlus {
    fn overhead(&self) -> usize {
        SALT
    }

    fn wrap(&self, datagram: &[u8], to: &mut Vec<u8>) {
        let mut salt = [0; SALT];
        // Without random numbers there would be no connection whose packets this could be.
        let _ = aws_lc_rs::rand::fill(&mut salt);
        self.wrap_with(salt, datagram, to);
    }

    fn unwrap(&self, datagram: &mut [u8]) -> Option<usize> {
        let (salt, rest) = datagram.split_at_mut_checked(SALT)?;
        if rest.is_empty() {
            return None;
        }
        self.apply(salt, rest);
        Some(SALT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_those_of_the_vector() {
        let xplus = XPlus::new(b"xplus-pw");
        let salt: Vec<u8> = (0..16).collect();
        let plain: Vec<u8> = (0xc0..=0xe7).collect();
        let mut wrapped = Vec::new();
        xplus.wrap_with(salt.try_into().unwrap(), &plain, &mut wrapped);
        let wanted = "000102030405060708090a0b0c0d0e0f7f12f7cd14a2e5710837713f2ad1eaac191fc45caecd67465c9ab4345685ecf35f32d7ed3482c551";
        assert_eq!(wrapped.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), wanted);
        assert_eq!(xplus.unwrap(&mut wrapped), Some(SALT));
        assert_eq!(wrapped[SALT..], plain);
        for len in 0..=SALT {
            assert_eq!(xplus.unwrap(&mut vec![0; len]), None);
        }
    }
}

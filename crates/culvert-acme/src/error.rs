//! What can go wrong on the way to a certificate.

use std::io;
use std::path::PathBuf;

use culvert_core::Chain;
use instant_acme::Problem;
use thiserror::Error;

/// There is no certificate. Whose it was to be, the caller says.
#[derive(Debug, Error)]
pub(crate) enum AcmeError {
    /// The authority said no, in its own words.
    #[error("the authority says: {}", words(.0))]
    Refused(Problem),
    /// The authority looked for the proof and was not content.
    #[error("{method}: {words}")]
    Unproven {
        /// By which challenge.
        method: &'static str,
        /// What the authority said, or what we know.
        words: String,
    },
    /// The authority was not reached, or did not make sense.
    #[error("{}", Chain(.0))]
    Exchange(instant_acme::Error),
    /// The files.
    #[error("{}: {source}", path.display())]
    Storage {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Something that fits in no other place.
    #[error("{0}")]
    Other(String),
}

impl AcmeError {
    /// The authority does not know our account any more.
    pub(crate) fn is_about_account(&self) -> bool {
        self.refusal() == Some("accountDoesNotExist")
    }

    /// Nobody has refused anything, and the next try may go through: a network that is down, say, an authority with a fault of
    /// its own, or one that forgot the nonces it gave out (RFC 8555, 6.5).
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Exchange(_)) || matches!(self.refusal(), Some("badNonce" | "serverInternal"))
    }

    /// The kind of the authority's problem (RFC 8555, 6.7).
    fn refusal(&self) -> Option<&str> {
        let Self::Refused(problem) = self else { return None };
        problem.r#type.as_deref()?.strip_prefix("urn:ietf:params:acme:error:")
    }
}

impl From<instant_acme::Error> for AcmeError {
    fn from(error: instant_acme::Error) -> Self {
        match error {
            instant_acme::Error::Api(problem) => Self::Refused(problem),
            other => Self::Exchange(other),
        }
    }
}

/// An authority's problem in one line. What comes from outside is cut, and has no line ends.
pub(crate) fn words(problem: &Problem) -> String {
    const MOST: usize = 500;
    let mut text = problem.detail.clone().unwrap_or_default();
    for sub in &problem.subproblems {
        text.push_str(&format!("; {sub}"));
    }
    if let Some(kind) = &problem.r#type {
        let kind = kind.strip_prefix("urn:ietf:params:acme:error:").unwrap_or(kind);
        text.push_str(&format!(" ({kind})"));
    }
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MOST)
        .collect::<String>()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_becomes_one_line() {
        let problem = Problem {
            r#type: Some("urn:ietf:params:acme:error:rateLimited".into()),
            detail: Some("too many\ncertificates".into()),
            status: Some(429),
            subproblems: Vec::new(),
        };
        let error = AcmeError::Refused(problem);
        assert_eq!(error.to_string(), "the authority says: too many certificates (rateLimited)");
        assert!(!error.is_passing() && !error.is_about_account());
    }
}

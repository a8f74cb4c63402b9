//! What stands fast for each browser.

pub(crate) const SERVER_NAME: u16 = 0;
pub(crate) const STATUS_REQUEST: u16 = 5;
pub(crate) const SUPPORTED_GROUPS: u16 = 10;
pub(super) const POINT_FORMATS: u16 = 11;
pub(crate) const SIGNATURE_ALGORITHMS: u16 = 13;
pub(crate) const PROTOCOLS: u16 = 16;
pub(crate) const SCT: u16 = 18;
pub(super) const PADDING: u16 = 21;
pub(crate) const EXTENDED_MASTER_SECRET: u16 = 23;
pub(crate) const COMPRESS_CERTIFICATE: u16 = 27;
pub(crate) const RECORD_SIZE_LIMIT: u16 = 28;
pub(crate) const DELEGATED_CREDENTIALS: u16 = 34;
pub(crate) const SESSION_TICKET: u16 = 35;
pub(crate) const SUPPORTED_VERSIONS: u16 = 43;
pub(crate) const COOKIE: u16 = 44;
pub(super) const PSK_MODES: u16 = 45;
pub(crate) const KEY_SHARE: u16 = 51;
/// Next protocol negotiation, which came before ALPN.
pub(crate) const NEXT_PROTOCOL: u16 = 13172;
/// Application settings, the number that Chrome used up to version 132.
pub(crate) const ALPS_OLD: u16 = 17513;
/// Application settings.
pub(crate) const ALPS: u16 = 17613;
/// Channel ids, of the days of SPDY.
pub(super) const CHANNEL_ID: u16 = 30031;
/// Encrypted Client Hello.
pub(crate) const ECH: u16 = 0xfe0d;
pub(crate) const RENEGOTIATION_INFO: u16 = 0xff01;

/// Stands where a reserved value is thrown in. The first extension of this kind is empty, the other has one byte.
pub(super) const GREASE: u16 = 0x0a0a;
pub(super) const GREASE_2: u16 = 0x1a1a;

/// What one browser always says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Profile {
    pub(super) suites: List,
    pub(super) extensions: List,
    /// Whether the extensions between two reserved ones come in any order.
    pub(super) shuffled: bool,
    pub(super) groups: List,
    /// The groups of which a key is sent.
    pub(super) shares: List,
    /// Whether the hybrid share has the key of the plain one.
    pub(super) one_key: bool,
    pub(super) versions: List,
    pub(super) schemes: List,
    pub(super) protocols: &'static [&'static str],
    /// Algorithms for compressed certificates.
    pub(super) compression: List,
    /// What an encrypted hello seems to be encrypted with: AEADs, and lengths.
    pub(super) ech: (&'static [u16], &'static [usize]),
}

pub(super) type List = &'static [u16];

const TLS13: [u16; 2] = [0x0304, 0x0303];

const H2: &[&str] = &["h2", "http/1.1"];

const CHROME_SCHEMES: &[u16] = &[0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601];

/// Signatures by ML-DSA in front, which no site has yet.
pub(super) const CHROME_150: Profile = Profile {
    schemes: &[0x0904, 0x0905, 0x0906, 0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601],
    ..CHROME_133
};

pub(super) const CHROME_133: Profile = Profile {
    suites: &[
        GREASE, 0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013, 0xc014,
        0x009c, 0x009d, 0x002f, 0x0035,
    ],
    extensions: &[
        GREASE,
        SERVER_NAME,
        EXTENDED_MASTER_SECRET,
        RENEGOTIATION_INFO,
        SUPPORTED_GROUPS,
        POINT_FORMATS,
        SESSION_TICKET,
        PROTOCOLS,
        STATUS_REQUEST,
        SIGNATURE_ALGORITHMS,
        SCT,
        KEY_SHARE,
        PSK_MODES,
        SUPPORTED_VERSIONS,
        COMPRESS_CERTIFICATE,
        ALPS,
        ECH,
        GREASE_2,
    ],
    shuffled: true,
    groups: &[GREASE, 0x11ec, 0x001d, 0x0017, 0x0018],
    shares: &[GREASE, 0x11ec, 0x001d],
    one_key: false,
    versions: &[GREASE, TLS13[0], TLS13[1]],
    schemes: CHROME_SCHEMES,
    protocols: H2,
    compression: &[2],
    // One of the list that puts AES first puts it first here too.
    ech: (&[1], &[144, 176, 208, 240]),
};

pub(super) const CHROME_131: Profile = Profile {
    extensions: &[
        GREASE,
        SERVER_NAME,
        EXTENDED_MASTER_SECRET,
        RENEGOTIATION_INFO,
        SUPPORTED_GROUPS,
        POINT_FORMATS,
        SESSION_TICKET,
        PROTOCOLS,
        STATUS_REQUEST,
        SIGNATURE_ALGORITHMS,
        SCT,
        KEY_SHARE,
        PSK_MODES,
        SUPPORTED_VERSIONS,
        COMPRESS_CERTIFICATE,
        ALPS_OLD,
        ECH,
        GREASE_2,
    ],
    ..CHROME_133
};

pub(super) const CHROME_120: Profile =
    Profile { groups: &[GREASE, 0x001d, 0x0017, 0x0018], shares: &[GREASE, 0x001d], ..CHROME_131 };

const FIREFOX_GROUPS: &[u16] = &[0x11ec, 0x001d, 0x0017, 0x0018, 0x0019, 0x0100, 0x0101];

pub(super) const FIREFOX_154: Profile = Profile {
    suites: &[
        0x1301, 0x1303, 0x1302, 0xc02b, 0xc02f, 0xcca9, 0xcca8, 0xc02c, 0xc030, 0xc013, 0xc014, 0x009c,
        0x009d, 0x002f, 0x0035,
    ],
    extensions: &[
        SERVER_NAME,
        EXTENDED_MASTER_SECRET,
        RENEGOTIATION_INFO,
        SUPPORTED_GROUPS,
        POINT_FORMATS,
        SESSION_TICKET,
        PROTOCOLS,
        STATUS_REQUEST,
        DELEGATED_CREDENTIALS,
        SCT,
        KEY_SHARE,
        SUPPORTED_VERSIONS,
        SIGNATURE_ALGORITHMS,
        PSK_MODES,
        RECORD_SIZE_LIMIT,
        COMPRESS_CERTIFICATE,
        ECH,
    ],
    shuffled: false,
    groups: FIREFOX_GROUPS,
    shares: &[0x11ec, 0x001d, 0x0017],
    one_key: true,
    versions: &TLS13,
    schemes: &[0x0403, 0x0503, 0x0603, 0x0804, 0x0805, 0x0806, 0x0401, 0x0501, 0x0601, 0x0203, 0x0201],
    protocols: H2,
    compression: &[1, 2, 3],
    ech: (&[1, 3], &[239]),
};

const FIREFOX_OLD_SUITES: &[u16] = &[
    0x1301, 0x1303, 0x1302, 0xc02b, 0xc02f, 0xcca9, 0xcca8, 0xc02c, 0xc030, 0xc00a, 0xc009, 0xc013, 0xc014,
    0x009c, 0x009d, 0x002f, 0x0035,
];

pub(super) const FIREFOX_148: Profile = Profile {
    suites: FIREFOX_OLD_SUITES,
    extensions: &[
        SERVER_NAME,
        EXTENDED_MASTER_SECRET,
        RENEGOTIATION_INFO,
        SUPPORTED_GROUPS,
        POINT_FORMATS,
        PROTOCOLS,
        STATUS_REQUEST,
        DELEGATED_CREDENTIALS,
        SCT,
        KEY_SHARE,
        SUPPORTED_VERSIONS,
        SIGNATURE_ALGORITHMS,
        RECORD_SIZE_LIMIT,
        COMPRESS_CERTIFICATE,
        ECH,
    ],
    ..FIREFOX_154
};

pub(super) const FIREFOX_120: Profile = Profile {
    suites: FIREFOX_OLD_SUITES,
    extensions: &[
        SERVER_NAME,
        EXTENDED_MASTER_SECRET,
        RENEGOTIATION_INFO,
        SUPPORTED_GROUPS,
        POINT_FORMATS,
        SESSION_TICKET,
        PROTOCOLS,
        STATUS_REQUEST,
        DELEGATED_CREDENTIALS,
        KEY_SHARE,
        SUPPORTED_VERSIONS,
        SIGNATURE_ALGORITHMS,
        PSK_MODES,
        RECORD_SIZE_LIMIT,
        ECH,
    ],
    groups: &[0x001d, 0x0017, 0x0018, 0x0019, 0x0100, 0x0101],
    shares: &[0x001d, 0x0017],
    compression: &[],
    ..FIREFOX_154
};

const SAFARI_SUITES: &[u16] = &[
    GREASE, 0x1301, 0x1302, 0x1303, 0xc02c, 0xc02b, 0xcca9, 0xc030, 0xc02f, 0xcca8, 0xc00a, 0xc009, 0xc014,
    0xc013, 0x009d, 0x009c, 0x0035, 0x002f, 0xc008, 0xc012, 0x000a,
];

const SAFARI_SCHEMES: &[u16] =
    &[0x0403, 0x0804, 0x0401, 0x0503, 0x0203, 0x0805, 0x0805, 0x0501, 0x0806, 0x0601, 0x0201];

pub(super) const SAFARI_16: Profile = Profile {
    suites: SAFARI_SUITES,
    extensions: &[
        GREASE,
        SERVER_NAME,
        EXTENDED_MASTER_SECRET,
        RENEGOTIATION_INFO,
        SUPPORTED_GROUPS,
        POINT_FORMATS,
        PROTOCOLS,
        STATUS_REQUEST,
        SIGNATURE_ALGORITHMS,
        SCT,
        KEY_SHARE,
        PSK_MODES,
        SUPPORTED_VERSIONS,
        COMPRESS_CERTIFICATE,
        GREASE_2,
        PADDING,
    ],
    shuffled: false,
    groups: &[GREASE, 0x001d, 0x0017, 0x0018, 0x0019],
    shares: &[GREASE, 0x001d],
    one_key: false,
    versions: &[GREASE, 0x0304, 0x0303, 0x0302, 0x0301],
    schemes: SAFARI_SCHEMES,
    protocols: H2,
    compression: &[1],
    ech: (&[], &[]),
};

pub(super) const SAFARI_26: Profile = Profile {
    suites: &[
        GREASE, 0x1302, 0x1303, 0x1301, 0xc02c, 0xc02b, 0xcca9, 0xc030, 0xc02f, 0xcca8, 0xc00a, 0xc009,
        0xc014, 0xc013, 0x009d, 0x009c, 0x0035, 0x002f, 0xc008, 0xc012, 0x000a,
    ],
    extensions: &[
        GREASE,
        SERVER_NAME,
        EXTENDED_MASTER_SECRET,
        RENEGOTIATION_INFO,
        SUPPORTED_GROUPS,
        POINT_FORMATS,
        PROTOCOLS,
        STATUS_REQUEST,
        SIGNATURE_ALGORITHMS,
        SCT,
        KEY_SHARE,
        PSK_MODES,
        SUPPORTED_VERSIONS,
        COMPRESS_CERTIFICATE,
        GREASE_2,
    ],
    groups: &[GREASE, 0x11ec, 0x001d, 0x0017, 0x0018, 0x0019],
    shares: &[GREASE, 0x11ec, 0x001d],
    versions: &[GREASE, 0x0304, 0x0303],
    schemes: &[0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0805, 0x0501, 0x0806, 0x0601, 0x0201],
    ..SAFARI_16
};

pub(super) const IOS_14: Profile = Profile {
    suites: &[
        GREASE, 0x1301, 0x1302, 0x1303, 0xc02c, 0xc02b, 0xcca9, 0xc030, 0xc02f, 0xcca8, 0xc024, 0xc023,
        0xc00a, 0xc009, 0xc028, 0xc027, 0xc014, 0xc013, 0x009d, 0x009c, 0x003d, 0x003c, 0x0035, 0x002f,
        0xc008, 0xc012, 0x000a,
    ],
    extensions: &[
        GREASE,
        SERVER_NAME,
        EXTENDED_MASTER_SECRET,
        RENEGOTIATION_INFO,
        SUPPORTED_GROUPS,
        POINT_FORMATS,
        PROTOCOLS,
        STATUS_REQUEST,
        SIGNATURE_ALGORITHMS,
        SCT,
        KEY_SHARE,
        PSK_MODES,
        SUPPORTED_VERSIONS,
        GREASE_2,
        PADDING,
    ],
    compression: &[],
    ..SAFARI_16
};

pub(super) const EDGE_85: Profile = Profile {
    extensions: &[
        GREASE,
        SERVER_NAME,
        EXTENDED_MASTER_SECRET,
        RENEGOTIATION_INFO,
        SUPPORTED_GROUPS,
        POINT_FORMATS,
        SESSION_TICKET,
        PROTOCOLS,
        STATUS_REQUEST,
        SIGNATURE_ALGORITHMS,
        SCT,
        KEY_SHARE,
        PSK_MODES,
        SUPPORTED_VERSIONS,
        COMPRESS_CERTIFICATE,
        GREASE_2,
        PADDING,
    ],
    shuffled: false,
    versions: &[GREASE, 0x0304, 0x0303, 0x0302, 0x0301],
    ech: (&[], &[]),
    ..CHROME_120
};

pub(super) const QQ_11: Profile = Profile {
    extensions: &[
        GREASE,
        SERVER_NAME,
        EXTENDED_MASTER_SECRET,
        RENEGOTIATION_INFO,
        SUPPORTED_GROUPS,
        POINT_FORMATS,
        SESSION_TICKET,
        PROTOCOLS,
        STATUS_REQUEST,
        SIGNATURE_ALGORITHMS,
        SCT,
        KEY_SHARE,
        PSK_MODES,
        SUPPORTED_VERSIONS,
        COMPRESS_CERTIFICATE,
        ALPS_OLD,
        GREASE_2,
        PADDING,
    ],
    ..EDGE_85
};

pub(super) const BROWSER_360: Profile = Profile {
    suites: &[
        0xc00a, 0xc014, 0x0039, 0x006b, 0x0035, 0x003d, 0xc007, 0xc009, 0xc023, 0xc011, 0xc013, 0xc027,
        0x0033, 0x0067, 0x0032, 0x0005, 0x0004, 0x002f, 0x003c, 0x000a,
    ],
    extensions: &[
        SERVER_NAME,
        RENEGOTIATION_INFO,
        SUPPORTED_GROUPS,
        POINT_FORMATS,
        SESSION_TICKET,
        NEXT_PROTOCOL,
        PROTOCOLS,
        CHANNEL_ID,
        STATUS_REQUEST,
        SIGNATURE_ALGORITHMS,
    ],
    shuffled: false,
    groups: &[0x0017, 0x0018, 0x0019],
    shares: &[],
    one_key: false,
    versions: &[],
    schemes: &[0x0401, 0x0501, 0x0201, 0x0403, 0x0503, 0x0203, 0x0402, 0x0202],
    protocols: &["spdy/2", "spdy/3", "spdy/3.1", "http/1.1"],
    compression: &[],
    ech: (&[], &[]),
};

pub(super) const ANDROID_11: Profile = Profile {
    suites: &[0xc02b, 0xc02c, 0xcca9, 0xc02f, 0xc030, 0xcca8, 0xc013, 0xc014, 0x009c, 0x009d, 0x002f, 0x0035],
    extensions: &[
        SERVER_NAME,
        EXTENDED_MASTER_SECRET,
        RENEGOTIATION_INFO,
        SUPPORTED_GROUPS,
        POINT_FORMATS,
        STATUS_REQUEST,
        SIGNATURE_ALGORITHMS,
    ],
    groups: &[0x001d, 0x0017, 0x0018],
    schemes: &[0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601, 0x0201],
    protocols: &[],
    ..BROWSER_360
};

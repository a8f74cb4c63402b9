//! A set of byte strings as a succinct trie, in memory exactly as a `.srs` file holds it.
//!
//! The trie is level-ordered: nodes are numbered breadth first, root 0, children in byte order. One bitmap holds, for
//! each node in turn, a 0 per edge and then a 1; `labels` holds the byte of each edge in the same order; `leaves` has a
//! bit per node that ends a key.
//!
//! ```text
//! keys ab, b     node 0 -a-> 1 -b-> 3      edges   001 01 1 1     (node 0: two edges, 1: one, 2 and 3: none)
//!                       -b-> 2             labels  a b b          leaves  0 0 1 1
//! ```
//!
//! The edge with label index `i` leads to node `i + 1`, so going down needs one lookup only: where a node's edges
//! start. Every sixteenth of these positions is kept; the rest is counted from there, mostly within one word.
//! About 13 bits a node in all. Source: `RULESET.md` section 3.

use std::collections::VecDeque;

use thiserror::Error;

/// Nodes per kept position: a trade of 2 bits a node for at most fifteen steps of counting.
const SAMPLE: usize = 16;

/// A trie read from outside or built from keys; see the module.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Trie {
    leaves: Box<[u64]>,
    edges: Box<[u64]>,
    labels: Box<[u8]>,
    /// Where in `edges` the edges of node `16 * i` start.
    starts: Box<[u32]>,
}

/// Why a stored trie is no trie.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum TrieError {
    /// No bitmap at all; writers leave an empty set out.
    #[error("the trie is empty")]
    Empty,
    /// The bitmap has not as many edges as there are labels.
    #[error("the trie's bitmap and labels do not fit together")]
    EdgeCount,
    /// A node has edges but nothing leads to it, so that walking could go in circles.
    #[error("the trie's nodes are not in level order")]
    Order,
    /// The edges of one node are not in byte order.
    #[error("the trie's labels are not sorted")]
    Labels,
    /// More nodes than 32 bits can number.
    #[error("the trie is too large")]
    Size,
}

/// A node on a walk: its number, and where its edges start.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Node {
    id: usize,
    start: usize,
}

/// A set of keys to build a trie from, in one allocation.
#[derive(Default)]
pub(crate) struct Keys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Keys {
    /// Adds one key, given byte by byte.
    pub(crate) fn push(&mut self, key: impl IntoIterator<Item = u8>) {
        self.bytes.extend(key);
        self.ends.push(self.bytes.len());
    }

    fn sorted(&self) -> Vec<&[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let mut keys: Vec<&[u8]> =
            starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end]).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

impl Trie {
    /// Builds from keys in any order; equal ones count once.
    pub(crate) fn build(keys: &Keys) -> Self {
        let keys = keys.sorted();
        let (mut leaves, mut edges, mut labels) = (Bits::default(), Bits::default(), Vec::new());
        // The keys below a node are neighbours after sorting: (from, to, length of the path to the node).
        let mut level = VecDeque::from([(0, keys.len(), 0)]);
        let mut node = 0;
        while let Some((mut from, to, depth)) = level.pop_front() {
            if from < to && keys[from].len() == depth {
                leaves.set(node);
                from += 1;
            }
            while from < to {
                let label = keys[from][depth];
                let same = keys[from..to].partition_point(|key| key[depth] == label);
                level.push_back((from, from + same, depth + 1));
                labels.push(label);
                edges.skip();
                from += same;
            }
            edges.push();
            node += 1;
        }
        let edges = edges.words.into_boxed_slice();
        let starts = sample_starts(&edges, labels.len());
        Self { leaves: leaves.words.into(), edges, labels: labels.into(), starts }
    }

    /// Takes the three arrays of a file and makes sure that every walk over them stays inside and ends.
    pub(crate) fn from_parts(leaves: Vec<u64>, edges: Vec<u64>, labels: Vec<u8>) -> Result<Self, TrieError> {
        if edges.is_empty() {
            return Err(TrieError::Empty);
        }
        if edges.len() > (u32::MAX / 64) as usize {
            return Err(TrieError::Size);
        }
        check(&edges, &labels)?;
        let starts = sample_starts(&edges, labels.len());
        Ok(Self { leaves: leaves.into(), edges: edges.into(), labels: labels.into(), starts })
    }

    /// The arrays to store: leaves, edge bitmap, labels.
    pub(crate) fn parts(&self) -> (&[u64], &[u64], &[u8]) {
        (&self.leaves, &self.edges, &self.labels)
    }

    pub(crate) fn root(&self) -> Node {
        Node { id: 0, start: 0 }
    }

    pub(crate) fn is_leaf(&self, node: Node) -> bool {
        self.is_leaf_id(node.id)
    }

    /// The bytes that lead on from `node`, in ascending order.
    pub(crate) fn labels(&self, node: Node) -> &[u8] {
        let first = node.start - node.id;
        &self.labels[first..first + zeros_from(&self.edges, node.start)]
    }

    /// Whether the `index`-th edge of `node` ends a key right there.
    pub(crate) fn child_is_leaf(&self, node: Node, index: usize) -> bool {
        self.is_leaf_id(node.start - node.id + index + 1)
    }

    /// Follows the `index`-th edge of `node`.
    pub(crate) fn child(&self, node: Node, index: usize) -> Node {
        let id = node.start - node.id + index + 1;
        let mut ones = id % SAMPLE;
        let mut start = self.starts[id / SAMPLE] as usize;
        if ones > 0 {
            // The edges of `id` start behind the `ones`-th end mark from here on.
            let mut index = start / 64;
            let mut word = self.edges[index] & (u64::MAX << (start % 64));
            loop {
                let here = word.count_ones() as usize;
                if here >= ones {
                    break;
                }
                ones -= here;
                index += 1;
                word = self.edges[index];
            }
            for _ in 1..ones {
                word &= word - 1;
            }
            start = index * 64 + word.trailing_zeros() as usize + 1;
        }
        Node { id, start }
    }

    /// Calls `visit` with every key, in byte order.
    pub(crate) fn for_each_key(&self, mut visit: impl FnMut(&[u8])) {
        // A stack of our own: a hostile file makes paths of any depth.
        let mut path = Vec::new();
        let mut stack = vec![(self.root(), 0)];
        if self.is_leaf(self.root()) {
            visit(&path);
        }
        while let Some((node, next)) = stack.pop() {
            let Some(&label) = self.labels(node).get(next) else {
                path.pop();
                continue;
            };
            stack.push((node, next + 1));
            let child = self.child(node, next);
            path.push(label);
            if self.is_leaf(child) {
                visit(&path);
            }
            stack.push((child, 0));
        }
    }

    /// Heap bytes held.
    pub(crate) fn heap_size(&self) -> usize {
        size_of_val(&*self.leaves)
            + size_of_val(&*self.edges)
            + size_of_val(&*self.labels)
            + size_of_val(&*self.starts)
    }

    fn is_leaf_id(&self, id: usize) -> bool {
        self.leaves.get(id / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }
}

/// Counts the 0 bits from `start` up to the next 1.
fn zeros_from(edges: &[u64], start: usize) -> usize {
    let mut index = start / 64;
    let Some(&first) = edges.get(index) else { return 0 };
    let mut word = first & (u64::MAX << (start % 64));
    while word == 0 {
        index += 1;
        match edges.get(index) {
            Some(&next) => word = next,
            None => return 0,
        }
    }
    index * 64 + word.trailing_zeros() as usize - start
}

/// Walks all nodes once: `labels.len() + 1` of them, each but the root led to from an earlier one.
fn check(edges: &[u64], labels: &[u8]) -> Result<(), TrieError> {
    let (mut seen, mut node, mut first) = (0, 0, 0);
    for bit in 0..edges.len() * 64 {
        if edges[bit / 64] >> (bit % 64) & 1 == 0 {
            seen += 1;
            continue;
        }
        if node > first {
            return Err(TrieError::Order);
        }
        let own = labels.get(first..seen).ok_or(TrieError::EdgeCount)?;
        if !own.is_sorted_by(|a, b| a < b) {
            return Err(TrieError::Labels);
        }
        if node == labels.len() {
            return if seen == labels.len() { Ok(()) } else { Err(TrieError::EdgeCount) };
        }
        node += 1;
        first = seen;
    }
    Err(TrieError::EdgeCount)
}

/// `edges` must hold `labels` zeros and one end mark more.
fn sample_starts(edges: &[u64], labels: usize) -> Box<[u32]> {
    let mut starts = Vec::with_capacity(labels / SAMPLE + 1);
    starts.push(0);
    let mut ends = 0;
    for (index, &word) in edges.iter().enumerate() {
        let mut rest = word;
        while rest != 0 && ends < labels {
            ends += 1;
            if ends % SAMPLE == 0 {
                starts.push((index * 64) as u32 + rest.trailing_zeros() + 1);
            }
            rest &= rest - 1;
        }
    }
    starts.into()
}

/// A bitmap that grows to the last 1 and no further.
#[derive(Default)]
struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    fn set(&mut self, bit: usize) {
        if self.words.len() <= bit / 64 {
            self.words.resize(bit / 64 + 1, 0);
        }
        self.words[bit / 64] |= 1 << (bit % 64);
    }

    fn push(&mut self) {
        self.set(self.len);
        self.len += 1;
    }

    fn skip(&mut self) {
        self.len += 1;
    }
}

/// Reads `data` as three counted arrays; what is accepted must walk, list its keys and rebuild to itself.
#[doc(hidden)]
pub fn fuzz_trie(data: &[u8]) {
    let [leaves, edges, labels @ ..] = data else { return };
    let (leaves, edges) = (usize::from(*leaves) % 8, usize::from(*edges) % 8);
    let words = |bytes: &[u8]| -> Vec<u64> {
        bytes.as_chunks().0.iter().map(|chunk: &[u8; 8]| u64::from_le_bytes(*chunk)).collect()
    };
    let Some((leaves, labels)) = labels.split_at_checked(leaves * 8) else { return };
    let Some((edges, labels)) = labels.split_at_checked(edges * 8) else { return };
    let Ok(trie) = Trie::from_parts(words(leaves), words(edges), labels.to_vec()) else { return };
    let mut keys = Keys::default();
    trie.for_each_key(|key| {
        let mut node = trie.root();
        for byte in key {
            let index = trie.labels(node).binary_search(byte).expect("a listed key is on a path");
            node = trie.child(node, index);
        }
        assert!(trie.is_leaf(node));
        keys.push(key.iter().copied());
    });
    let rebuilt = Trie::build(&keys);
    let mut again = Keys::default();
    rebuilt.for_each_key(|key| again.push(key.iter().copied()));
    assert!(keys.bytes == again.bytes && keys.ends == again.ends);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn build<K: AsRef<[u8]>>(keys: &[K]) -> Trie {
        let mut list = Keys::default();
        keys.iter().for_each(|key| list.push(key.as_ref().iter().copied()));
        Trie::build(&list)
    }

    fn keys_of(trie: &Trie) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        trie.for_each_key(|key| keys.push(key.to_vec()));
        keys
    }

    #[test]
    fn the_drawing_in_the_module_is_right() {
        let trie = build(&["b", "ab"]);
        assert_eq!(trie.parts(), (&[0b1100][..], &[0b11_10100][..], &b"abb"[..]));
    }

    #[test]
    fn the_empty_key_is_the_root() {
        let trie = build(&[""]);
        assert_eq!(trie.parts(), (&[1][..], &[1][..], &b""[..]));
        assert_eq!(keys_of(&trie), [b""]);
    }

    #[test]
    fn broken_arrays_are_refused() {
        let parts = |edges: &[u64], labels: &[u8]| Trie::from_parts(vec![1], edges.to_vec(), labels.to_vec());
        assert_eq!(parts(&[], b""), Err(TrieError::Empty));
        assert_eq!(parts(&[0b10100], b"abb"), Err(TrieError::EdgeCount));
        assert_eq!(parts(&[0b11_10100], b"ab"), Err(TrieError::EdgeCount));
        assert_eq!(parts(&[0b11_10100], b"bab"), Err(TrieError::Labels));
        assert_eq!(parts(&[0b11_10100], b"aab"), Err(TrieError::Labels));
        assert_eq!(parts(&[0b10011], b"ab"), Err(TrieError::Order));
        assert!(parts(&[0b11_10100], b"abb").is_ok());
        assert!(parts(&[0b11_10100 | 1 << 63, 7], b"abb").is_ok(), "bits behind the last node mean nothing");
    }

    #[test]
    fn a_path_of_a_million_nodes_is_listed_without_recursion() {
        let key = vec![b'x'; 1_000_000];
        assert_eq!(keys_of(&build(&[&key])), [key]);
    }

    proptest! {
        #[test]
        fn keys_come_back_sorted(keys in prop::collection::vec(prop::collection::vec(0u8..5, 0..12), 1..200)) {
            let trie = build(&keys);
            let expected: BTreeSet<_> = keys.into_iter().collect();
            prop_assert_eq!(keys_of(&trie), expected.into_iter().collect::<Vec<_>>());
            let (leaves, edges, labels) = trie.parts();
            prop_assert_eq!(Trie::from_parts(leaves.to_vec(), edges.to_vec(), labels.to_vec()), Ok(trie.clone()));
        }

        #[test]
        fn any_bytes_are_survived(data in prop::collection::vec(any::<u8>(), 0..160)) {
            fuzz_trie(&data);
        }

        #[test]
        fn damaged_tries_are_survived(
            keys in prop::collection::vec(prop::collection::vec(0u8..3, 0..6), 1..30),
            flips in prop::collection::vec((any::<u16>(), 0u8..8), 0..4),
        ) {
            let trie = build(&keys);
            let (leaves, edges, labels) = trie.parts();
            let mut data = vec![leaves.len() as u8, edges.len() as u8];
            leaves.iter().chain(edges).for_each(|word| data.extend(word.to_le_bytes()));
            data.extend(labels);
            for (at, bit) in flips {
                let at = usize::from(at) % data.len();
                data[at] ^= 1 << bit;
            }
            fuzz_trie(&data);
        }
    }
}

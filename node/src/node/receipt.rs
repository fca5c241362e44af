//! What a home gives for a post is looked at before it is passed on: a receipt that proves nothing would let the home
//! deny later what it acknowledged.

use serde_json::Value;
use tieline_proto::api::{ApiError, Code, Posted};
use tieline_proto::id::ChannelId;
use tieline_proto::log::{Proof, verify_receipt};

/// Checks a home's answer to a post. `is_home` says whether the one that sealed the receipt was the channel's home then.
///
/// # Errors
/// `internal`, in words that say that nobody knows whether the post was saved.
pub(super) fn check(answer: &Value, channel: ChannelId, is_home: impl FnOnce(&Proof) -> bool) -> Result<(), ApiError> {
    let unknown = |why: String| {
        let what = format!("the home's receipt proves nothing ({why}): whether the post was saved is not known");
        Err(ApiError::new(Code::Internal, what).hint("tieline tail CHANNEL"))
    };
    let Ok(posted) = serde_json::from_value::<Posted>(answer.clone()) else {
        return unknown("the answer cannot be read".to_owned());
    };
    match verify_receipt(&posted.receipt) {
        Err(error) => unknown(error.to_string()),
        Ok(proof) if proof.log != channel => unknown("it is of another channel".to_owned()),
        Ok(proof) if proof.seq != posted.seq => unknown(format!("it is of entry {}, not {}", proof.seq, posted.seq)),
        Ok(proof) if !is_home(&proof) => unknown(format!("{} is not the home", proof.home.short())),
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng;
    use tieline_proto::crypto::keys::DeviceKeys;
    use tieline_proto::entry::{Auth, Body, NewEntry};
    use tieline_proto::id::{Epoch, Hash, Lamport, MessageId, Seq};
    use tieline_proto::log::receipt::receipt;
    use tieline_proto::log::{Head, LogBuilder, LogId};

    use super::*;

    const LOBBY: ChannelId = ChannelId([1; 32]);

    fn keys(seed: u64) -> DeviceKeys {
        DeviceKeys::generate(&mut ChaCha20Rng::seed_from_u64(seed))
    }

    /// The receipt of a channel's first entry.
    fn sealed(channel: ChannelId, home: &DeviceKeys) -> String {
        let mut log = LogBuilder::new(LogId::Channel(channel), Head::default());
        let entry = NewEntry {
            seq: Seq(1),
            epoch: Epoch(1),
            lamport: Lamport(1),
            org: Hash::ZERO,
            ts: 0,
            by: None,
            auth: Auth::Home,
            body: Body::ChannelCreated { draft: String::new() },
        };
        let (mut lines, mut seal) = (Vec::new(), Vec::new());
        log.append(entry, &mut lines).unwrap();
        let hashes = log.seal(home.signing(), &mut seal).unwrap();
        receipt(Seq(1), &hashes, seal.trim_ascii_end())
    }

    fn answer(seq: u64, receipt: &str) -> Value {
        let (message, state, receipt) = (MessageId(1), "saved".to_owned(), receipt.to_owned());
        let posted = Posted { message, seq: Seq(seq), state, receipt, unknown: Vec::new(), to: Vec::new() };
        serde_json::to_value(posted).unwrap()
    }

    #[test]
    fn threat_a3_rubbish_is_not_passed_on_as_a_receipt() {
        let home = keys(1).device();
        let check = |answer: &Value| check(answer, LOBBY, |proof| proof.home == home);
        assert_eq!(check(&answer(1, &sealed(LOBBY, &keys(1)))), Ok(()));
        let refused = [
            answer(1, ""),
            answer(1, "cnViYmlzaA"),
            answer(2, &sealed(LOBBY, &keys(1))),
            answer(1, &sealed(ChannelId([2; 32]), &keys(1))),
            answer(1, &sealed(LOBBY, &keys(2))),
            serde_json::json!({ "message": 1 }),
        ];
        for answer in refused {
            let error = check(&answer).unwrap_err();
            assert_eq!(error.code, Code::Internal);
            assert!(error.message.contains("not known"), "{}", error.message);
        }
    }
}

//! Looking members up by what people call them.

use super::world::World;
use crate::id::Handle;

/// A walk over all handles for each would be 10¹¹ comparisons: nobody waits for that, whatever the box.
#[test]
fn threat_c6_a_member_is_found_without_a_walk_over_all() {
    let mut state = World::new(1, 0).core().state().clone();
    let id = *state.members.keys().next().expect("its owner");
    let handles: Vec<_> = (0..500_000).map(|n| format!("m{n:06}")).collect();
    state.handles = handles.iter().map(|handle| (Handle::new(handle).expect("a handle"), id)).collect();
    assert!(handles.iter().all(|handle| state.by_handle(handle).is_some_and(|(found, _)| found == id)));
    assert!(handles.iter().all(|handle| state.by_handle(&handle[1..]).is_none()));
}

package machine

import (
	"cmp"
	"math/bits"

	"fencepost/internal/fencing"
)

// digest is a hash over what the entries of the log have come to, one after the other. Who has carried out the
// same entries and has another one decides differently: another version, or a fault of a machine. It is not over all of the
// state, which is large: what differs there shows as soon as it makes a difference.
type digest uint64

func (d *digest) number(v uint64) {
	*d = digest(bits.RotateLeft64(uint64(*d)^v, 29)*0x9e3779b97f4a7c15 + 1)
}

func (d *digest) flag(is bool) {
	if is {
		d.number(1)
	} else {
		d.number(0)
	}
}

func (d *digest) text(s string) {
	d.number(uint64(len(s)))
	for i := range len(s) {
		d.number(uint64(s[i]))
	}
}

func (d *digest) holder(h *fencing.Holder) {
	d.text(string(h.Lease))
	d.number(uint64(h.Token))
	d.number(uint64(h.ExpiresAt))
	d.text(string(h.Mode))
	for _, n := range []int{h.Limit, h.Permits, h.Slot, h.Hold} {
		d.number(uint64(n))
	}
	for slot := range h.Slots.All() {
		d.number(uint64(slot))
	}
	d.number(uint64(h.BreakAt))
	d.flag(h.Provisional)
}

// step adds what a step came to.
func (d *digest) step(out *fencing.Outcome) {
	if out.Err != nil {
		d.text(string(out.Err.Code))
	}
	d.holder(&out.Holder)
	for _, is := range []bool{out.Fresh, out.More, out.Claimed, out.Noticed, out.Joined, out.Place != nil, out.Evicted != nil, out.Replaced != nil} {
		d.flag(is)
	}
	if out.Fence != nil {
		d.number(uint64(out.Fence.HighestIssued))
		d.number(uint64(out.Fence.HighestAdmitted))
	}
	d.number(uint64(len(out.Left)))
	d.number(uint64(len(out.Ended)))
	for i := range out.Ended {
		d.holder(&out.Ended[i].Holder)
		d.text(string(out.Ended[i].Reason))
		d.number(uint64(out.Ended[i].At))
	}
	d.number(uint64(len(out.Granted)))
	for i := range out.Granted {
		d.holder(&out.Granted[i].Holder)
	}
}

// digestAt is the digest after an entry.
type digestAt struct {
	index uint64
	digest
	unknown bool // from here to the next one
}

// mostDigests is how many are remembered: those of some seconds under load.
const mostDigests = 4096

// digested notes the digest after an entry.
func (m *Machine) digested(index uint64) {
	m.digest.number(uint64(m.now))
	m.digest.number(uint64(m.state.Counter))
	m.digest.number(uint64(len(m.state.Records)))
	m.digest.number(uint64(len(m.state.Tombstones)))
	if m.state.Rules > 1 {
		m.digest.number(uint64(m.state.Rules))
	}
	if len(m.digests) == mostDigests {
		m.digests = append(m.digests[:0], m.digests[mostDigests/2:]...)
	}
	m.digests = append(m.digests, digestAt{index: index, digest: m.digest})
}

// LastDigest returns the digest after the last entry, and the index of that; 0 before the first one.
func (m *Machine) LastDigest() (index, digest uint64) {
	last := m.digests[len(m.digests)-1]
	return last.index, uint64(last.digest)
}

// DigestAt returns the digest after all entries up to one that is carried out; known is false if they are too long ago, or before the snapshot
// that was restored.
func (m *Machine) DigestAt(index uint64) (digest uint64, known bool) {
	for i := len(m.digests) - 1; i >= 0 && index <= m.applied; i-- {
		if m.digests[i].index <= index {
			return uint64(m.digests[i].digest), !m.digests[i].unknown
		}
	}
	return 0, false
}

// restoreDigests has the digests be what a snapshot says of them: that after its last entry, and after the one before. An earlier version did
// not say which entry its last one was, behind which others may follow that are none of ours; in between nothing is known then.
func (m *Machine) restoreDigests(h *stateHead) {
	m.digest, m.digests = digest(h.Digest), nil
	if h.Behind > 0 {
		m.digests = append(m.digests, digestAt{index: h.Behind, digest: digest(h.Before)})
	}
	last := cmp.Or(h.Last, h.Applied)
	if h.Last == 0 && h.Behind > 0 && h.Behind+1 < last {
		m.digests = append(m.digests, digestAt{index: h.Behind + 1, unknown: true})
	}
	m.digests = append(m.digests, digestAt{index: last, digest: m.digest})
}

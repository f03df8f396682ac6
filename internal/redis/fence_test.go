package redis

import (
	"testing"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

func admitted(t *testing.T, s *Store, name fencing.Name, token fencing.Token, slot int) fencing.Code {
	t.Helper()
	_, err := s.Do(t.Context(), fencing.AdmitRequest{Name: name, Token: token, Slot: slot})
	if err == nil {
		return fencing.CodeOK
	}
	return code(err)
}

func permit(name fencing.Name) fencing.AcquireRequest {
	r := acquireRequest(name)
	r.Mode, r.Limit = fencing.ModeShared, 2
	return r
}

// Where the marks of slots are gone, the highest token that was admitted takes their place:
// others are kept out rather than a stale one let in.
func TestMarksGone(t *testing.T) {
	server := redistest.Start(t)
	for what, harm := range harms {
		t.Run(what, func(t *testing.T) {
			flush(t, server)
			s := openBackend(t, server).stores[0]
			first, second := mustAcquire(t, s, permit("a")).Holder.Token, mustAcquire(t, s, permit("a")).Holder.Token
			for slot, token := range []fencing.Token{first, second} {
				if got := admitted(t, s, "a", token, slot); got != fencing.CodeOK {
					t.Fatal(got)
				}
			}
			harm(t.Context(), s, s.keys[0].prefix+"marks:a")
			if got := admitted(t, s, "a", first, 1); got != fencing.CodeStaleToken {
				t.Errorf("a stale token is %s where the marks are gone", got)
			}
			if got := admitted(t, s, "a", second, 1); got != fencing.CodeOK {
				t.Errorf("the newest token is %s where the marks are gone", got)
			}
		})
	}
}

// The marks of slots are kept for as long as the record of the name, and go when a token
// that is admitted without slot takes their place.
func TestMarksGoWithTheRecord(t *testing.T) {
	server := redistest.Start(t)
	s := openBackend(t, server).stores[0]
	ctx, marks := t.Context(), s.keys[0].prefix+"marks:a"
	r := permit("a")
	token := mustAcquire(t, s, r).Holder.Token
	second := permit("a")
	newer := mustAcquire(t, s, second).Holder.Token
	if got := admitted(t, s, "a", newer, 1); got != fencing.CodeOK {
		t.Fatal(got)
	}
	ends := func() bool { return s.redis().PTTL(ctx, marks).Val() > 0 }
	if s.redis().Exists(ctx, marks).Val() != 1 || ends() {
		t.Error("the marks of a name that is held are not kept")
	}
	mustRelease(t, s, r)
	mustRelease(t, s, second)
	if !ends() {
		t.Error("the marks of a name that is free are kept for ever")
	}
	held := mustAcquire(t, s, acquireRequest("a")).Holder.Token
	if ends() {
		t.Error("the marks of a name that is held again are not kept")
	}
	if got := admitted(t, s, "a", held, fencing.NoSlot); got != fencing.CodeOK {
		t.Error(got)
	}
	if s.redis().Exists(ctx, marks).Val() != 0 {
		t.Error("marks are kept that say nothing any more")
	}
	if got := admitted(t, s, "a", token, 0); got != fencing.CodeStaleToken {
		t.Errorf("a stale token is %s", got)
	}
}

// Replicas have to confirm an admission as they do a grant, also one that changes nothing.
func TestAdmissionIsReplicated(t *testing.T) {
	t.Parallel()
	master, replica := replicated(t)
	s := open(t, Options{URL: master.URL(), ReplicaAcks: 1})
	token := mustAcquire(t, s, acquireRequest("a")).Holder.Token
	if got := admitted(t, s, "a", token, fencing.NoSlot); got != fencing.CodeOK {
		t.Fatal(got)
	}
	if err := replica.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := admitted(t, s, "a", token, fencing.NoSlot); got != fencing.CodeNotReplicated {
		t.Errorf("without replicas a token is %s", got)
	}
	if got := admitted(t, s, "a", token+1, fencing.NoSlot); got != fencing.CodeStaleToken {
		t.Errorf("without replicas a token that was never issued is %s", got)
	}
}

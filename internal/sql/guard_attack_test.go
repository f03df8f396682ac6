package sql

import (
	"context"
	stdsql "database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/fence"
)

// program is a holder that writes its token to the end of a log, in a transaction.
type program struct {
	b       *guardBase
	guarded bool // it calls guard
	token   int64
	tx      *stdsql.Tx
}

func (b *guardBase) program(guarded bool, token int64) *program {
	return &program{b: b, guarded: guarded, token: token, tx: b.begin(nil)}
}

func (p *program) guard() error {
	if !p.guarded {
		return nil
	}
	_, err := p.b.guard(p.tx, "orders/42", p.token)
	return err
}

func (p *program) write() error {
	var n int
	if err := p.tx.QueryRowContext(p.b.t.Context(), "select coalesce(max(n), 0) from log").Scan(&n); err != nil {
		return err
	}
	_, err := p.tx.ExecContext(p.b.t.Context(), fmt.Sprintf("insert into log (n, token) values (%d, %d)", n+1, p.token))
	return err
}

// all guards, writes and commits.
func (p *program) all() error {
	defer func() { _ = p.tx.Rollback() }()
	if err := p.guard(); err != nil {
		return err
	}
	if err := p.write(); err != nil {
		return err
	}
	return p.tx.Commit()
}

func (b *guardBase) makeLog() {
	b.t.Helper()
	if b.mysql {
		if _, err := b.user.ExecContext(b.t.Context(), "create table log (n int primary key, token bigint not null) engine = InnoDB"); err != nil {
			b.t.Fatal(err)
		}
		return
	}
	b.run("create table public.log (n int primary key, token bigint not null)", "grant all on public.log to public")
}

// log returns the tokens in the order in which they were written.
func (b *guardBase) log() (tokens []int64) {
	b.t.Helper()
	rows, err := b.user.QueryContext(b.t.Context(), "select token from log order by n")
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var token int64
		if err := rows.Scan(&token); err != nil {
			b.t.Fatal(err)
		}
		tokens = append(tokens, token)
	}
	if err := rows.Err(); err != nil {
		b.t.Fatal(err)
	}
	return tokens
}

// handOn ends the lease with token 5 as a gateway does whose time is over, and grants 9 to the next holder, who writes.
// Where a transaction guards the lease it does not get to that.
func (b *guardBase) handOn(guarded bool) (done bool) {
	b.t.Helper()
	ended, err := b.end(5)
	if err != nil {
		b.t.Fatal(err)
	}
	if len(ended) == 0 {
		return false
	}
	b.granted(9, "orders/42", 3600)
	if err := b.program(guarded, 9).all(); err != nil {
		b.t.Error(err)
	}
	return true
}

// Each attack is tried with the guard, which must stand it, and without, where what is stored must be wrong: else the
// attack proves nothing. The holder of 5 is attacked, that of 9 is next.
func TestGuardAttacked(t *testing.T) {
	attacks := map[string]struct {
		play func(b *guardBase, guarded bool)
		want string // the tokens in the log
	}{
		"paused before it": {func(b *guardBase, guarded bool) {
			first := b.program(guarded, 5)
			b.handOn(guarded)
			err := first.all()
			if guarded {
				b.refuses(err, notHeld)
			}
		}, "[9]"},
		"expired in the middle": {func(b *guardBase, guarded bool) {
			first := b.program(guarded, 5)
			err := first.guard()
			if renewErr := b.renew(5, -1); renewErr != nil {
				b.t.Fatal(renewErr)
			}
			done := b.handOn(guarded)
			if err := errors.Join(err, first.write(), first.tx.Commit()); err != nil {
				b.t.Error(err)
			}
			if !done && !b.handOn(guarded) {
				b.t.Error("it was not handed on after the transaction")
			}
		}, "[5 9]"},
		"rolled back": {func(b *guardBase, guarded bool) {
			first := b.program(guarded, 5)
			err := errors.Join(first.guard(), first.write())
			if guarded && b.handOn(guarded) {
				b.t.Error("it was handed on before the rollback")
			}
			if err := errors.Join(err, first.tx.Rollback()); err != nil {
				b.t.Error(err)
			}
			if !b.handOn(guarded) {
				b.t.Error("it was not handed on after the rollback")
			}
			err = b.program(guarded, 5).all() // it tries again
			if guarded {
				b.refuses(err, notHeld)
			}
		}, "[9]"},
		"handed on": {func(b *guardBase, guarded bool) {
			if err := b.program(guarded, 5).all(); err != nil {
				b.t.Error(err)
			}
			b.handOn(guarded)
			err := b.program(guarded, 5).all()
			if guarded {
				b.refuses(err, notHeld)
			}
		}, "[5 9]"},
		"forged": {func(b *guardBase, guarded bool) {
			b.granted(7, "orders/43", 3600)
			for _, token := range []int64{0, -5, 4, 6, 7, 8, fence.MaxToken} {
				err := b.program(guarded, token).all()
				if guarded {
					b.refuses(err, notHeld)
				}
			}
			b.handOn(guarded)
		}, "[9]"},
	}
	for name, attack := range attacks {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, b *guardBase) {
				for _, guarded := range []bool{true, false} {
					t.Run(map[bool]string{true: "guarded", false: "unguarded"}[guarded], func(t *testing.T) {
						b := b.again(t)
						b.makeLog()
						b.granted(5, "orders/42", 3600)
						attack.play(b, guarded)
						if got := fmt.Sprint(b.log()); (got == attack.want) != guarded {
							t.Errorf("the log has %s; %s is right", got, attack.want)
						}
					})
				}
			})
		})
	}
}

// again makes another database of the kind.
func (b *guardBase) again(t *testing.T) *guardBase {
	if b.mysql {
		return guardMariaDB(t)
	}
	return guardPostgres(t)
}

// Holders that stop at any moment, past their time as well, while others wait and others forge: what is written is in the
// order of the grants, and each grant comes after what was written before.
func TestGuardUnderLoad(t *testing.T) {
	onBoth(t, func(t *testing.T, b *guardBase) {
		b.makeLog()
		const holders, grants = 6, 60
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		var issued, written, refused atomic.Int64
		granted := make(chan int64) // unbuffered: whoever is next takes it
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		var all sync.WaitGroup
		all.Go(func() { // the gateway: a lease is over when it is granted, but for the time that its row takes to go
			defer close(granted)
			for token := int64(1); token <= grants && ctx.Err() == nil; token++ {
				if err := b.grant(token, "orders/42", 3600); err != nil {
					t.Error(err)
					return
				}
				issued.Store(token)
				granted <- token
				for { // released or broken, at any moment
					ended, err := b.end(token)
					if err != nil {
						t.Error(err)
						return
					}
					if len(ended) > 0 || ctx.Err() != nil {
						break
					}
				}
			}
		})
		pause := func(r *rand.Rand) { time.Sleep(time.Duration(r.IntN(4)) * time.Millisecond) }
		for i := range holders {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			all.Go(func() {
				for token := range granted {
					err := func() error {
						tx, err := b.user.BeginTx(ctx, nil)
						if err != nil {
							return err
						}
						p := &program{b: b, guarded: true, token: token, tx: tx}
						defer func() { _ = tx.Rollback() }()
						if r.IntN(2) == 0 {
							pause(r)
						}
						if err := p.guard(); err != nil {
							return err
						}
						pause(r)
						if now := issued.Load(); now != token {
							t.Errorf("%d was granted while %d was guarded", now, token)
						}
						if err := p.write(); err != nil {
							return err
						}
						pause(r)
						if r.IntN(4) == 0 {
							return tx.Rollback()
						}
						written.Add(1)
						return tx.Commit()
					}()
					if state, _ := guardState(err); state == notHeld {
						refused.Add(1)
					} else if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Go(func() { // a forger
			r := rand.New(rand.NewPCG(seed, holders))
			for issued.Load() < grants && ctx.Err() == nil {
				token := issued.Load() + 2 + r.Int64N(100)
				tx, err := b.user.BeginTx(ctx, nil)
				if err != nil {
					t.Error(err)
					return
				}
				_, err = b.guard(tx, "orders/42", token)
				if state, _ := guardState(err); state != notHeld && issued.Load() < token {
					t.Errorf("%d passed: %v", token, err)
				}
				pause(r)
				_ = tx.Rollback()
			}
		})
		all.Wait()
		log := b.log()
		for i := 1; i < len(log); i++ {
			if log[i] <= log[i-1] {
				t.Errorf("%d was written after %d", log[i], log[i-1])
			}
		}
		if int64(len(log)) != written.Load() || len(log) == 0 || refused.Load() == 0 {
			t.Errorf("%d rows of %d, %d refused", len(log), written.Load(), refused.Load())
		}
		t.Logf("%d written, %d refused", written.Load(), refused.Load())
	})
}

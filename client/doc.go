// Package client takes locks from Fencepost gateways. It needs the standard library only.
//
//	c, err := client.New(client.Options{Addresses: []string{"http://127.0.0.1:8080"}, Owner: "worker-7"})
//	…
//	defer c.Close()
//	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // else SIGTERM leaves the lock held
//	defer stop()
//	err = c.Do(ctx, "orders/42", func(ctx context.Context, lease *client.Lease) error {
//		return ship(ctx, 42, lease.Token()) // UPDATE … WHERE id = 42 AND fence <= token
//	})
//
// # What it promises
//
// While a [Lease] is held it is renewed, and its context is cancelled before the lease can
// be gone: by a deadline of this process's own, counted from before the request was sent
// that was answered last. The deadline runs on while the machine is suspended, where Go's
// monotonic clock stands still.
//
// An exception is a lease of [Attached], which its gateway releases when it sees the end of
// the connection, even where this process does not see it yet. From when this process sees it, [Lease.Err] is not
// nil until the lease was taken over, for a few seconds at most: see there. So are leases that somebody else ends: by
// [Client.Break], or with their lease id.
//
// The context's cause tells lost from unknown. A gateway that says that the lease has
// ended, whoever ended it, is an [Error] with [CodeLeaseLost]. If no gateway could be
// asked in time it is [ErrUnknown]: perhaps the lease is still held, but nobody may count
// on that.
//
// Every request may be sent again, at another gateway too: the lease id is made here,
// before the first one. A wait that breaks off goes on at its place in the queue.
//
// A renewal whose answer takes long is left running, and the next one is sent beside it, at the next gateway if there
// is one: after a third of the time that is left, 3 s at most. Whichever is answered counts from when it was sent. So
// answers that are late end no lease that was renewed, as long as they come before the deadline. Eight renewals of a
// lease are under way at most, and 1,024 late ones of a client.
//
// # What it doesn't promise
//
// That nobody else holds the lock while your code runs. A process that is stopped (by the
// scheduler, a debugger, SIGSTOP, a suspended machine) is not told of anything until it
// goes on, and may then do a step before it looks at its context. [Lease.Err] looks at the
// clocks, and narrows this to the time between the look and the write; it can't close it.
// What closes it is the storage: send [Lease.Token] along with every write, and let the
// storage refuse a lower one than it has seen.
//
// Nor can Go end a function that ignores its context: [Client.Do] returns when the function
// does. Where that is not good enough, run the work as a process, with lockctl run.
package client

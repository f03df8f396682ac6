package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"fencepost/client"
)

// ship stands for a write that takes the token along: UPDATE … WHERE id = 42 AND fence <= token.
func ship(ctx context.Context, order int, token int64) error { return nil }

func Example() {
	c, err := client.New(client.Options{Addresses: []string{"http://127.0.0.1:8080"}, Owner: "worker-7"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop() // a signal ends the work, if it heeds its context, and then the lock is released
	err = c.Do(ctx, "orders/42", func(ctx context.Context, lease *client.Lease) error {
		return ship(ctx, 42, lease.Token())
	}, client.TTL(30*time.Second), client.Wait(time.Minute))
	switch {
	case errors.Is(err, client.CodeWaitTimeout):
		fmt.Println("somebody else has it:", err)
	case errors.Is(err, client.CodeLeaseLost):
		fmt.Println("it was lost while we worked:", err)
	case errors.Is(err, client.ErrUnknown):
		fmt.Println("we stopped, for nobody could be asked in time:", err)
	case err != nil:
		log.Print(err)
	}
}

func ExampleEncodeName() {
	fmt.Println(client.EncodeName("https://example.org/Zürich #1"))
	// Output: https:/~2Fexample.org/Z~C3~BCrich~20~231
}

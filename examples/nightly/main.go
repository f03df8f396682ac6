// Nightly takes a lock with the package client and prints its fencing token. docs/clients.md says how to build it.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"fencepost/client"
)

func main() {
	c, err := client.New(client.Options{
		Addresses: []string{cmp.Or(os.Getenv("FENCEPOST"), "http://127.0.0.1:8080")},
		Key:       os.Getenv("FENCEPOST_KEY"),
	})
	if err != nil {
		log.Fatal(err)
	}
	err = c.Do(context.Background(), "reports/nightly", func(ctx context.Context, lease *client.Lease) error {
		fmt.Println("I have the lock, with the token", lease.Token())
		return nil
	})
	if err := errors.Join(err, c.Close()); err != nil {
		log.Fatal(err)
	}
}

// Nightly takes a lock with the package client and prints its fencing token. docs/clients.md says how to build it.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"

	"fencepost/client"
)

func main() {
	c, err := client.New(client.Options{Addresses: []string{cmp.Or(os.Getenv("FENCEPOST"), "http://127.0.0.1:8080")}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	err = c.Do(context.Background(), "orders/42", func(ctx context.Context, lease *client.Lease) error {
		fmt.Println("I have the lock, with the token", lease.Token())
		return nil
	})
	if err != nil {
		log.Print(err)
	}
}

package redistest

import (
	"context"
	"testing"
)

func TestLaunch(t *testing.T) {
	var server *Server
	stop, err := Launch(func(t testing.TB) { server = Start(t) })
	if err != nil {
		t.Fatal(err)
	}
	client := server.Client()
	defer client.Close()
	if err := client.Ping(context.Background()).Err(); err != nil {
		t.Errorf("the server that was launched does not answer: %v", err)
	}
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	select {
	case <-server.exited:
	default:
		t.Error("the server still runs")
	}
}

func TestLaunchThatFails(t *testing.T) {
	var server *Server
	stop, err := Launch(func(t testing.TB) {
		server = Start(t)
		Start(t, "--no-such-setting")
	})
	if err == nil || stop == nil {
		t.Fatalf("a launch that fails returns %v and stop %t, want an error and a stop", err, stop != nil)
	}
	select {
	case <-server.exited:
	default:
		t.Error("a server of a launch that failed still runs")
	}
}

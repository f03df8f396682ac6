package redis

import "testing"

// A master that is cut off from all its replicas is what min-replicas-to-write is
// for: without it STRICT must refuse just then.
func TestStrictWhenCutOff(t *testing.T) {
	c := &circumstances{failover: true}
	f := &facts{
		info:   map[string]string{"role": "master", "connected_slaves": "1", "slave0": "ip=10.0.0.2,port=6379,state=online,offset=1,lag=1"},
		config: map[string]string{"min-replicas-to-write": "0", "min-replicas-max-lag": "10"},
	}
	if got := c.replicas(f); got.Promise != "P1" {
		t.Errorf("with a replica: %+v", got)
	}
	delete(f.info, "slave0") // the link is cut, and the Sentinels promote it
	if got := c.replicas(f); got.Promise != "P1" {
		t.Errorf("cut off from it, where it matters, STRICT grants again: %+v", got)
	}
}

// appendfsync no is not "about the last second".
func TestAppendfsyncNo(t *testing.T) {
	c := &circumstances{failover: true}
	f := &facts{
		info:   map[string]string{"role": "master", "aof_enabled": "1"},
		config: map[string]string{"appendfsync": "no", "save": ""},
	}
	if got := c.persistence(f); got.OK {
		t.Errorf("%+v", got)
	}
}

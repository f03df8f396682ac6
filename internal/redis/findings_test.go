package redis

import (
	"fmt"
	"strconv"
	"testing"
)

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

// Where CONFIG GET is refused, a minimum that is there may be too low, unless one is enough.
func TestReplicasThatCannotBeToldOf(t *testing.T) {
	for replicas, ok := range map[int]bool{1: true, 2: true, 3: false} {
		f := &facts{info: map[string]string{"role": "master", "connected_slaves": strconv.Itoa(replicas), "min_slaves_good_slaves": strconv.Itoa(replicas)}}
		for i := range replicas {
			f.info["slave"+strconv.Itoa(i)] = "ip=10.0.0.2,port=6379,state=online,offset=1,lag=1"
		}
		if got := (&circumstances{failover: true, sentinel: true}).replicas(f); got.OK != ok || (got.Promise == "P1") == ok {
			t.Errorf("%d replicas: %+v", replicas, got)
		}
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

// With fewer than half of the replicas as a minimum, a master on either side of a cut has
// enough of them.
func TestReplicasOnBothSidesOfACut(t *testing.T) {
	for _, c := range []struct {
		replicas, least string
		danger          bool
	}{
		{"1", "1", false}, {"2", "1", false}, {"3", "1", true}, {"3", "2", false},
		{"4", "1", true}, {"4", "2", false}, {"5", "2", true}, {"5", "3", false},
	} {
		f := &facts{
			info:   map[string]string{"role": "master", "connected_slaves": c.replicas},
			config: map[string]string{"min-replicas-to-write": c.least, "min-replicas-max-lag": "3"},
		}
		for i := range atLeast(c.replicas) {
			f.info[fmt.Sprintf("slave%d", i)] = "ip=10.0.0.2,port=6379,state=online,offset=1,lag=1"
		}
		if got := (&circumstances{failover: true, sentinel: true}).replicas(f); (got.Promise == "P1") != c.danger || got.OK == c.danger {
			t.Errorf("%s replicas, at least %s: %+v", c.replicas, c.least, got)
		}
	}
}

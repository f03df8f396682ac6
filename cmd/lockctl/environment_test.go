package main

import (
	"os"
	"strings"
	"testing"

	"fencepost/verify/system"
)

// TestEnvironment: a variable that nobody reads is refused, whatever else would be asked; those of the gateway and of Kubernetes
// may be there.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	for variable, meant := range map[string]string{
		"FENCEPOST_URL": "FENCEPOST", "FENCEPOST_ADDR": "FENCEPOST", "FENCEPOST_ADDRESS": "FENCEPOST", "FENCEPOST_GATEWAY": "FENCEPOST", "FENCEPOSTS": "FENCEPOST",
		"FENCEPOST_KEYFILE": "FENCEPOST_KEY_FILE", "FENCEPOST_KYE": "FENCEPOST_KEY", "FENCEPOST_CA": "FENCEPOST_CA_FILE", "FENCEPOST_CERT": "FENCEPOST_CERT_FILE", "FENCEPOST_LISTENADDR": "FENCEPOST_LISTEN_ADDR",
		"FENCEPOST_STORE": "", "FENCEPOST_KEYS_FILE": "", "FENCEPOST_DATA_DIR": "", "FENCEPOST_PORT_8080_TCP_ADDR": "", "FENCEPOST_EU_SERVICE_HOST": "", "FENCEPOST_KEY": "",
	} {
		t.Run(variable, func(t *testing.T) {
			t.Parallel()
			file := t.TempDir() + "/ran"
			status, out := lockctl(t, []string{variable + "=http://127.0.0.1:1", "no_proxy=*"}, "run", "-gateway", s.Gateways[0].URL(), "environment/"+variable, "--", "touch", file)
			_, err := os.Stat(file)
			switch {
			case meant == "" && (status != 0 || err != nil):
				t.Errorf("status %d: %s", status, out)
			case meant != "" && (status != exitUsage || err == nil || !strings.Contains(out, "$"+variable+" is not a variable of lockctl; is "+meant+" meant?")):
				t.Errorf("status %d, %v: %s", status, err, out)
			}
		})
	}
	if status, out := lockctl(t, []string{"FENCEPOST_URL=x"}, "-help"); status != 0 {
		t.Errorf("-help: status %d, %s", status, out)
	}
}

// TestNoGatewayNamed: who names no gateway is told which one was asked where it does not answer.
func TestNoGatewayNamed(t *testing.T) {
	t.Setenv("FENCEPOST", "")
	const said = "FENCEPOST is not set, so " + defaultGateway + " was asked"
	if status, out := lockctl(t, []string{"FENCEPOST=http://127.0.0.1:1", "no_proxy=*"}, "run", "-wait", "10ms", "none/named", "--", "true"); status != exitUnreachable || strings.Contains(out, said) {
		t.Errorf("status %d: %s", status, out)
	}
	cmd, c := command{name: "ls"}, &call{settings: settings{gateways: defaultGateway}} // whatever listens there
	if err := cmd.hint(c, exit{status: exitUnreachable, err: os.ErrDeadlineExceeded}); !strings.HasSuffix(err.Error(), said) || statusOf(err) != exitUnreachable {
		t.Error(err)
	}
	if status, out := lockctl(t, nil, "run", "-wait", "10ms", "-gateway", defaultGateway, "none/named", "--", "true"); strings.Contains(out, "is not set") {
		t.Errorf("status %d: %s", status, out)
	}
}

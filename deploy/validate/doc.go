// Package validate holds deploy/ against the tools that read it: the parsers of Docker,
// Compose, Helm, Kubernetes and Prometheus, systemd-analyze, and a package that is built.
// What it runs it runs for real: the gateway of the package with the settings of its unit,
// and two gateways behind the balancer of the Compose files.
//
// It is a module of its own, since what it needs of these tools is nothing that who
// imports Fencepost should get along with it. `make test-deploy` runs it.
package validate

package main

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"unicode"

	"fencepost/internal/variables"
)

// gatewaysVariable says which gateways are asked.
const gatewaysVariable = variables.Prefix

// ownVariables are all that lockctl reads of those with our prefix.
var ownVariables = []string{gatewaysVariable, keyVariable, keyFileVariable, caFileVariable, certFileVariable, certKeyVariable}

// betweenAddresses reports whether a character stands between addresses in a list of them.
func betweenAddresses(r rune) bool { return r == ',' || unicode.IsSpace(r) }

// checkEnvironment refuses a misspelt variable: without it another gateway would be asked, or with no key. The settings of the
// gateway are none of lockctl's, but may be there, as in its container.
func checkEnvironment() error {
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, variables.Prefix) || slices.Contains(ownVariables, name) || slices.Contains(variables.Gateway, name) || variables.Service.MatchString(name) {
			continue
		}
		begun := "" // as of FENCEPOST_CA
		for _, own := range ownVariables[1:] {
			if strings.HasPrefix(own, name+"_") {
				begun = cmp.Or(begun, own)
			}
		}
		meant := cmp.Or(variables.Nearest(name, ownVariables), begun, variables.Nearest(name, variables.Gateway), gatewaysVariable)
		return usage("$%s is not a variable of lockctl; is %s meant? lockctl -help lists them", name, meant)
	}
	return nil
}

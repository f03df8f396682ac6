package main

import "strings"

// maxTypos is how far from a setting a name may be to be taken for it, and half of what
// it has behind the prefix.
const maxTypos = 4

// nearest suggests the setting that was probably meant; nothing if none is near.
func nearest(name string, known []string) string {
	best, least := "", min(maxTypos, len(strings.TrimPrefix(name, envPrefix+"_"))/2)+1
	for _, candidate := range known {
		if typos := editDistance(name, candidate); typos < least {
			best, least = candidate, typos
		}
	}
	if best == "" {
		return ""
	}
	return " (is " + best + " meant?)"
}

// editDistance is how many bytes have to be inserted, removed or replaced to make b of a.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// completion prints a script for a shell: the commands first, then the names of locks that
// are held, for what takes a name.
func completion(_ context.Context, c *call) error {
	script, ok := map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[c.args[0]]
	if !ok {
		return usage("there is no completion for %q; there is for bash, zsh and fish", c.args[0])
	}
	var names []string
	for _, cmd := range commands() {
		names = append(names, cmd.name)
	}
	_, err := fmt.Fprint(c.out, strings.ReplaceAll(script, "COMMANDS", strings.Join(names, " ")))
	return err
}

// namesWithin is how long the names for a completion may take: a shell does nothing meanwhile.
const namesWithin = time.Second

const bashCompletion = `_lockctl() {
	local word=${COMP_WORDS[COMP_CWORD]}
	if [ "$COMP_CWORD" = 1 ]; then
		COMPREPLY=($(compgen -W "COMMANDS" -- "$word"))
	elif [ "${COMP_WORDS[1]}" = completion ]; then
		COMPREPLY=($(compgen -W "bash zsh fish" -- "$word"))
	else
		COMPREPLY=($(compgen -W "$(lockctl completion names "$word" 2>/dev/null)" -- "$word"))
		compopt -o default 2>/dev/null
	fi
	case $COMP_WORDBREAKS in *:*) # what bash takes for words ends at a colon
		local before=${word%"${word##*:}"} i
		for i in "${!COMPREPLY[@]}"; do COMPREPLY[i]=${COMPREPLY[i]#"$before"}; done
	esac
}
complete -F _lockctl lockctl
`

const zshCompletion = `#compdef lockctl
_lockctl() {
	if (( CURRENT == 2 )); then
		compadd -- COMMANDS
	elif [[ $words[2] == completion ]]; then
		compadd -- bash zsh fish
	else
		compadd -- ${(f)"$(lockctl completion names "$PREFIX" 2>/dev/null)"}
		_default
	fi
}
compdef _lockctl lockctl
`

const fishCompletion = `complete -c lockctl -f -n __fish_use_subcommand -a "COMMANDS"
complete -c lockctl -f -n "__fish_seen_subcommand_from completion" -a "bash zsh fish"
complete -c lockctl -n "not __fish_use_subcommand; and not __fish_seen_subcommand_from completion" -a "(lockctl completion names (commandline -ct) 2>/dev/null)"
`

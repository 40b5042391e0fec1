// Command h2pingbench is the other side of every measurement: the origin behind the proxies, the clients in front of
// them, and a reverse proxy of net/http to compare with. Only the standard library, so that it builds offline.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	commands := map[string]func([]string) error{"origin": origin, "load": load, "proxy": proxy}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: h2pingbench origin|load|proxy [flags]")
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// say prints one line of JSON, which the harness reads.
func say(value any) {
	line, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

// The application of openai_app.py on Go's net/http. Usage: origin PORT CHAIN KEY
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
)

type object = map[string]any

func completion(text string) object {
	return object{
		"id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "judge",
		"choices": []object{{"index": 0, "finish_reason": "stop",
			"message": object{"role": "assistant", "content": text}}},
		"usage": object{"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
	}
}

func chunk(text string) object {
	return object{
		"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "judge",
		"choices": []object{{"index": 0, "delta": object{"content": text}, "finish_reason": nil}},
	}
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("content-type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

func chat(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var asked struct {
		Stream bool `json:"stream"`
	}
	_ = json.Unmarshal(body, &asked)
	if !asked.Stream {
		sum := sha256.Sum256(body)
		writeJSON(w, completion(hex.EncodeToString(sum[:])))
		return
	}
	w.Header().Set("content-type", "text/event-stream")
	for number := 0; number < 5; number++ {
		event, _ := json.Marshal(chunk(fmt.Sprintf("%d ", number)))
		fmt.Fprintf(w, "data: %s\n\n", event)
		w.(http.Flusher).Flush()
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func upload(w http.ResponseWriter, r *http.Request) {
	hash := sha256.New()
	size, err := io.Copy(hash, r.Body)
	if err != nil {
		return
	}
	writeJSON(w, object{"sha256": hex.EncodeToString(hash.Sum(nil)), "size": size})
}

func main() {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/chat/completions", chat)
	mux.HandleFunc("/upload", upload)
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, object{"object": "list", "data": []object{{"id": "judge"}}})
	})
	only2 := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			http.Error(w, "HTTP/2 only", http.StatusHTTPVersionNotSupported)
			return
		}
		mux.ServeHTTP(w, r)
	})
	log.Fatal(http.ListenAndServeTLS("127.0.0.1:"+os.Args[1], os.Args[2], os.Args[3], only2))
}

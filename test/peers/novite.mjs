// The Inspector's pages are built beforehand; its server brings vite only to build them anew,
// which no test does. Test code only.
import { registerHooks } from 'node:module';

const stub = 'data:text/javascript,export const createServer = undefined; export default undefined;';
registerHooks({
  resolve(name, context, next) {
    return name === 'vite' || name === '@vitejs/plugin-react' ? { url: stub, shortCircuit: true } : next(name, context);
  },
});
